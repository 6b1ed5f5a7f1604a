# Every build has the pack kernels for GPUs as PTX, which the driver compiles. TFRING_PACK_BINARIES adds
# what NVRTC makes of them for each architecture: docs/adr/0025.
option(TFRING_PACK_BINARIES "Compile the pack kernels for each GPU architecture; needs NVRTC" OFF)
set(TFRING_NVRTC "" CACHE FILEPATH
  "libnvrtc.so.12; empty: that of the wheel nvidia-cuda-nvrtc-cu12 in the Python environment")
if(NOT TFRING_PACK_BINARIES)
  return()
endif()
set(pack_compiler ${CMAKE_SOURCE_DIR}/tools/compile_pack_kernels.py)
set(pack_nvrtc "${TFRING_NVRTC}")
if(NOT pack_nvrtc)
  execute_process(COMMAND ${Python_EXECUTABLE} ${pack_compiler} --find
    OUTPUT_VARIABLE pack_nvrtc ERROR_VARIABLE pack_reason OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT pack_nvrtc)
    message(FATAL_ERROR "TFRING_PACK_BINARIES: ${pack_reason}")
  endif()
endif()
message(STATUS "Binaries of the pack kernels by ${pack_nvrtc}")
set(pack ${CMAKE_CURRENT_LIST_DIR})
set(pack_binaries ${CMAKE_CURRENT_BINARY_DIR}/pack_binaries.cc)
add_custom_command(
  OUTPUT ${pack_binaries}
  COMMAND ${Python_EXECUTABLE} ${pack_compiler} --nvrtc ${pack_nvrtc}
    --folder ${CMAKE_CURRENT_BINARY_DIR}/pack --output ${pack_binaries}
  DEPENDS ${pack_compiler} ${pack}/pack_kernels.cu ${pack}/pack_batch.h ${pack}/pack_threads.h
    ${CMAKE_SOURCE_DIR}/ops/runtime/backend/reduction/scaling.h
    ${CMAKE_SOURCE_DIR}/ops/runtime/base/half.h
  COMMENT "Compiling the pack kernels for GPUs" VERBATIM)
list(REMOVE_ITEM gpu_sources ${pack}/no_pack_binaries.cc)
list(APPEND gpu_sources ${pack_binaries})
