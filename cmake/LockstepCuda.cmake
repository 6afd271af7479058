# LOCKSTEP_CUDA_HEADERS: the folder of CUDA's headers, for CUDA graphs (lockstep/device/internal/cuda_graph.cpp). Empty where there are
# none, or where libtorch's CUDA half is not linked; programs then have no graphs on CUDA devices, and say so.
#
# pip puts them beside torch (nvidia-cuda-runtime), a toolkit under CUDA_HOME or /usr/local/cuda.
set(LOCKSTEP_CUDA_HEADERS "")
if(LOCKSTEP_TORCH_HAS_CUDA)
  file(GLOB _lockstep_beside "${LOCKSTEP_TORCH_DIR}/../nvidia/cu*/include" "${LOCKSTEP_TORCH_DIR}/../nvidia/cuda_runtime/include")
  foreach(_lockstep_dir IN LISTS _lockstep_beside ITEMS "$ENV{CUDA_HOME}/include" /usr/local/cuda/include)
    if(NOT LOCKSTEP_CUDA_HEADERS AND EXISTS "${_lockstep_dir}/cuda_runtime_api.h" AND EXISTS "${_lockstep_dir}/crt/host_defines.h")
      set(LOCKSTEP_CUDA_HEADERS "${_lockstep_dir}")
    endif()
  endforeach()
  if(LOCKSTEP_CUDA_HEADERS)
    message(STATUS "CUDA graphs: with the headers in ${LOCKSTEP_CUDA_HEADERS}")
  else()
    message(STATUS "CUDA graphs are left out: cuda_runtime_api.h is neither beside torch (pip install nvidia-cuda-runtime), nor in $CUDA_HOME/include, nor in /usr/local/cuda/include")
  endif()
endif()
