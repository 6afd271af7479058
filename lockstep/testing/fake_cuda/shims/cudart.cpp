// The functions of the CUDA runtime that a program may find in libcudart.so.13.
#include "lockstep/testing/fake_cuda/internal/runtime_tables.h"

extern "C" {

const lockstep::testing::fake::RuntimeTable* lockstep_fake_cudart = nullptr;  // FakeCuda's

int cudaStreamCreateWithFlags(void** stream, unsigned) {
  return lockstep_fake_cudart->stream_create(stream);
}
int cudaStreamDestroy(void* stream) {
  return lockstep_fake_cudart->stream_destroy(stream);
}

}  // extern "C"
