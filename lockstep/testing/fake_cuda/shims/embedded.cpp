// The two libraries themselves, so that a program carries them and needs no path to them.
#include "lockstep/testing/fake_cuda/shims/embedded.h"

#define LOCKSTEP_EMBED(name, file)                                 \
  __asm__(                                                         \
      ".section .rodata\n"                                         \
      ".global " #name "_begin\n.global " #name                    \
      "_end\n"                                                     \
      ".balign 16\n" #name "_begin:\n.incbin \"" file "\"\n" #name \
      "_end:\n"                                                    \
      ".previous\n")

LOCKSTEP_EMBED(lockstep_fake_nccl_file, LOCKSTEP_FAKE_NCCL);
LOCKSTEP_EMBED(lockstep_fake_cudart_file, LOCKSTEP_FAKE_CUDART);

extern "C" {
extern const char lockstep_fake_nccl_file_begin[], lockstep_fake_nccl_file_end[];
extern const char lockstep_fake_cudart_file_begin[], lockstep_fake_cudart_file_end[];
}

namespace lockstep::inline v0::testing::fake {

std::string_view nccl_file() {
  return {lockstep_fake_nccl_file_begin,
          static_cast<size_t>(lockstep_fake_nccl_file_end - lockstep_fake_nccl_file_begin)};
}
std::string_view cudart_file() {
  return {lockstep_fake_cudart_file_begin,
          static_cast<size_t>(lockstep_fake_cudart_file_end - lockstep_fake_cudart_file_begin)};
}

}  // namespace lockstep::inline v0::testing::fake
