#include "lockstep/rpc/internal/process_read.h"

#include <signal.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "lockstep/core/secret.h"

namespace lockstep::rpc::internal {

ProofWord::ProofWord() {
  const std::string bytes = random_bytes(sizeof word_);
  std::memcpy(&word_, bytes.data(), sizeof word_);
}

bool read_process(int64_t pid, Proof proof, uint64_t address, void* to, size_t bytes) {
  constexpr size_t kMost = size_t{1} << 30;  // a call moves less than 2 GiB
  auto* at = static_cast<char*>(to);
  do {
    uint64_t word = 0;
    const size_t part = std::min(bytes, kMost);
    const iovec local[2] = {{&word, sizeof word}, {at, part}};
    const iovec remote[2] = {
        {reinterpret_cast<void*>(proof.address), sizeof word},  // NOLINT: of another process
        {reinterpret_cast<void*>(address), part}};              // NOLINT
    const unsigned long pieces = part > 0 ? 2 : 1;
    const ssize_t n = ::process_vm_readv(static_cast<pid_t>(pid), local, pieces, remote, pieces, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    if (n < static_cast<ssize_t>(sizeof word) || word != proof.value) {
      errno = 0;
      return false;
    }
    const auto got = static_cast<size_t>(n) - sizeof word;
    if (got == 0 && part > 0) {
      errno = EFAULT;
      return false;
    }
    at += got;
    address += got;
    bytes -= got;
  } while (bytes > 0);
  return true;
}

bool can_read_process(int64_t pid, Proof proof) {
  return read_process(pid, proof, 0, nullptr, 0);
}

bool process_is_gone(int64_t pid) {
  if (::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH) return true;
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return false;
  // After "(name)": state, then six numbers, then the flags; a process closes its sockets before it becomes a zombie.
  std::istringstream rest(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string state, skipped;
  unsigned long flags = 0;
  rest >> state;
  for (int i = 0; i < 5; ++i) rest >> skipped;
  rest >> flags;
  constexpr unsigned long kExiting = 0x4;
  return state == "Z" || state == "X" || (flags & kExiting) != 0;
}

}  // namespace lockstep::rpc::internal
