// The stream of an rpc link: whatever comes, in pieces of whatever size, is messages or BadFrame.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "lockstep/core/errors.h"
#include "lockstep/rpc/internal/hello.h"
#include "lockstep/rpc/internal/receiver.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep::rpc::internal;
  if (size == 0) return 0;
  // The first byte says how large the pieces are.
  const size_t piece = size_t{data[0]} * data[0] + 1;
  std::span<const uint8_t> left(data + 1, size - 1);
  static const auto memory = ReceiveMemory::make(size_t{1} << 20);
  Receiver receiver(size_t{1} << 20, memory);
  size_t bytes = 0;
  try {
    while (!left.empty()) {
      size_t most = std::min(piece, left.size()), came = 0;
      for (const iovec& place : receiver.places()) {
        const size_t part = std::min(place.iov_len, most - came);
        std::memcpy(place.iov_base, left.data() + came, part);
        came += part;
      }
      left = left.subspan(came);
      receiver.came(came, [&](Receiver::Message& message) {
        for (const char c : message.body) bytes += static_cast<unsigned char>(c);
        for (size_t i = 0; i < message.tensors.size(); ++i)
          if (message.places[i].address == 0) bytes += message.tensors[i].nbytes();
      });
    }
  } catch (const BadFrame&) {
  }
  try {
    Hello::decode({reinterpret_cast<const char*>(data), size});
  } catch (const BadFrame&) {
  }
  return bytes == SIZE_MAX ? -1 : 0;  // so that the bytes are read
}
