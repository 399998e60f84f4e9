#include "device/cpu/cpu_socket.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

// Room for one file descriptor, aligned as its header wants.
typedef union control {
  struct cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
} control;

void mgl_socket_close(int *fd) {
  if (*fd >= 0) {
    (void)close(*fd);
  }
  *fd = -1;
}

bool mgl_socket_send(int socket, const void *data, size_t bytes, int fd) {
  control room;
  memset(&room, 0, sizeof room);
  struct iovec part = {(void *)(uintptr_t)data, bytes};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  if (fd >= 0) {
    message.msg_control = room.bytes;
    message.msg_controllen = sizeof room.bytes;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)bytes;
}

bool mgl_socket_take(int socket, void *data, size_t bytes, int *fd) {
  control room;
  memset(&room, 0, sizeof room);
  struct iovec part = {data, bytes};
  struct msghdr message = {.msg_iov = &part,
                           .msg_iovlen = 1,
                           .msg_control = room.bytes,
                           .msg_controllen = sizeof room.bytes};
  ssize_t got = 0;
  *fd = -1;
  do {
    got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  struct cmsghdr *header = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
  if (header != NULL && header->cmsg_type == SCM_RIGHTS) {
    memcpy(fd, CMSG_DATA(header), sizeof *fd);
  }
  return got == (ssize_t)bytes && (message.msg_flags & MSG_TRUNC) == 0;
}
