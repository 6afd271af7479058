#include "lockstep/comm/agree.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <cstdio>
#include <mutex>
#include <string_view>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lockstep::inline v0 {

void agree(const Communicator& comm, const std::string& what,
           std::initializer_list<AgreedValue> values, Communicator::Site site) {
  std::string text = what;
  uint64_t key = fingerprint(what);
  for (const AgreedValue& value : values) {
    std::array<char, 16> digits{};
    std::snprintf(digits.data(), digits.size(), "%08x", static_cast<uint32_t>(value.fingerprint));
    text +=
        (&value == values.begin() ? ": " : ", ") + std::string(value.name) + " " + digits.data();
    key = (key ^ fingerprint(value.name) ^ value.fingerprint) * 0x100000001b3ULL;
  }
  Communicator handle = comm;
  handle.iall_reduce(at::zeros({1}, at::kByte), ReduceOp::kMax, {key | 1, text.c_str()}, site)
      .wait();
}

uint64_t tensor_fingerprint(const at::Tensor& tensor) {
  uint64_t key = static_cast<uint64_t>(tensor.scalar_type()) + 1;
  for (const int64_t size : tensor.sizes())
    key = (key ^ static_cast<uint64_t>(size)) * 0x100000001b3ULL;
  if (!tensor.is_cpu()) return key;
  const at::Tensor dense = tensor.detach().contiguous();
  return XXH3_64bits_withSeed(dense.const_data_ptr(), dense.nbytes(), key);
}

uint64_t random_fingerprint() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  const at::Tensor state = generator.get_state().contiguous();
  return fingerprint(std::string_view(static_cast<const char*>(state.const_data_ptr()),
                                      static_cast<size_t>(state.nbytes())));
}

}  // namespace lockstep::inline v0
