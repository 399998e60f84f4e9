# Puts the device sources into the binary, by the names by which they include each other:
# mgl_embed_device_sources(TARGET) defines mgl_cuda_sources (device/cuda/cuda_jit.h).
include(cmake/embed_files.cmake)

function(mgl_embed_device_sources target)
  set(src ${CMAKE_SOURCE_DIR}/src)
  file(GLOB files CONFIGURE_DEPENDS ${src}/kernels/cuda/*.cu ${src}/kernels/cuda/*/*.cuh
    ${src}/kernels/cuda/*/*.h ${src}/twin/*.h ${src}/twin/*.def)
  list(APPEND files ${src}/graph/op.def ${src}/graph/op.h ${src}/graph/formulas.h ${src}/base/limits.h
    ${src}/base/dtype.h ${src}/base/form.def)
  set(pairs "")
  foreach(file ${files})
    file(RELATIVE_PATH name ${src} ${file})
    list(APPEND pairs "${name}=${file}")
    if(name STREQUAL "kernels/cuda/common/nvrtc_types.h")  # stands for the C headers that NVRTC lacks
      foreach(header stdint.h stdbool.h stddef.h string.h)
        list(APPEND pairs "${header}=${file}")
      endforeach()
    endif()
  endforeach()
  mgl_embed_files(${target} mgl_cuda_sources mgl_cuda_source device/cuda/cuda_jit.h ${pairs})
endfunction()
