# Compiles the pack kernels for GPUs with NVRTC and embeds them (docs/adr/0025). Without NVRTC the
# runtime is built without them and says so in `tfring doctor`.
set(TFRING_NVRTC "" CACHE STRING
  "libnvrtc.so.12; empty: that of the wheel nvidia-cuda-nvrtc-cu12 in the Python environment; OFF: none")
set(pack_nvrtc "${TFRING_NVRTC}")
set(pack_reason "TFRING_NVRTC is ${TFRING_NVRTC}")
set(pack_compiler ${CMAKE_SOURCE_DIR}/tools/compile_pack_kernels.py)
find_package(Python REQUIRED COMPONENTS Interpreter)
if("${pack_nvrtc}" STREQUAL "")
  execute_process(COMMAND ${Python_EXECUTABLE} ${pack_compiler} --find
    OUTPUT_VARIABLE pack_nvrtc ERROR_VARIABLE pack_reason OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_STRIP_TRAILING_WHITESPACE)
endif()
if(NOT pack_nvrtc)
  message(STATUS "No pack kernels for GPUs: ${pack_reason}")
  return()
endif()
message(STATUS "Pack kernels for GPUs by ${pack_nvrtc}")
set(pack ${CMAKE_CURRENT_LIST_DIR})
set(pack_images ${CMAKE_CURRENT_BINARY_DIR}/built_pack_images.cc)
add_custom_command(
  OUTPUT ${pack_images}
  COMMAND ${Python_EXECUTABLE} ${pack_compiler} --nvrtc ${pack_nvrtc}
    --folder ${CMAKE_CURRENT_BINARY_DIR}/pack --output ${pack_images}
  DEPENDS ${pack_compiler} ${pack}/pack_kernels.cu ${pack}/pack_batch.h ${pack}/pack_threads.h
    ${CMAKE_CURRENT_SOURCE_DIR}/backend/reduction/scaling.h ${CMAKE_CURRENT_SOURCE_DIR}/base/half.h
  COMMENT "Compiling the pack kernels for GPUs" VERBATIM)
list(REMOVE_ITEM runtime_sources ${pack}/no_pack_images.cc)
list(APPEND runtime_sources ${pack_images})
