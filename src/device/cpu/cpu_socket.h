// Unix sockets between the processes of ranks: messages that may carry a file descriptor.
#ifndef MGL_DEVICE_CPU_CPU_SOCKET_H
#define MGL_DEVICE_CPU_CPU_SOCKET_H

#include <stdbool.h>
#include <stddef.h>

// Closes what is open; *fd is -1 then.
void mgl_socket_close(int *fd);

// Sends a message whole, with a file descriptor unless fd is -1. False: the other end has closed.
bool mgl_socket_send(int socket, const void *data, size_t bytes, int fd);

// Takes a message of just so many bytes. *fd is the caller's, -1 where none came, whatever is
// returned. False: another length, the end, or the socket's patience is over.
bool mgl_socket_take(int socket, void *data, size_t bytes, int *fd);

#endif
