// What a program gets that touches device memory outside of an operation.
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "lockstep/testing/fake_cuda/internal/devices.h"
#include "lockstep/testing/fake_cuda/internal/machine.h"
#include "lockstep/testing/fake_cuda/internal/pinned.h"

namespace lockstep::inline v0::testing::fake {
namespace {

struct sigaction former;

bool was_write(const void* context) {
#if defined(__x86_64__)
  constexpr greg_t kWrite = 2;  // of a page fault's error code
  return (static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & kWrite) != 0;
#elif defined(__aarch64__)
  // The fault's syndrome is one of several records; bit 6 of it: the access was a write.
  const auto* at = static_cast<const ucontext_t*>(context)->uc_mcontext.__reserved;
  const auto* const end = at + sizeof(ucontext_t{}.uc_mcontext.__reserved);
  while (at + sizeof(esr_context) <= end) {
    const auto* const head = reinterpret_cast<const _aarch64_ctx*>(at);
    if (head->magic == ESR_MAGIC)
      return (reinterpret_cast<const esr_context*>(at)->esr & (1U << 6)) != 0;
    if (head->magic == 0 || head->size == 0) break;
    at += head->size;
  }
  return false;
#else
  (void)context;
  return false;
#endif
}

// As if this handler were not there.
void pass_on(int number, siginfo_t* info, void* context) {
  if ((former.sa_flags & SA_SIGINFO) != 0 && former.sa_sigaction != nullptr) {
    former.sa_sigaction(number, info, context);
  } else if (former.sa_handler != SIG_DFL && former.sa_handler != SIG_IGN) {
    former.sa_handler(number);
  } else {
    ::signal(number, SIG_DFL);  // the access is tried again when this returns
  }
}

// What the host has done, or nothing where the fault is none of ours. `at`: the operation whose
// memory it was.
struct Trespass {
  std::string deed;
  PlacePtr at;
  Block* block = nullptr;
};

Trespass trespass(const void* address, bool write) {
  Machine& m = machine();
  const std::string access = write ? "wrote" : "read";
  if (PlacePtr copy =
          pinned_memory().disturbed(address, m.options.host_access == HostAccess::kNote))
    return {"host code " + access + " pinned memory that a copy may not be through with", copy};
  if (!m.memory.owns(address)) return {};
  Block* block = m.memory.find(address);
  return {"host code " + access +
              " device memory of cuda:" + std::to_string(m.memory.device_of(address)),
          block != nullptr ? block->made : nullptr, block};
}

// The fault is the program's own, in the middle of its code: it holds no lock of this room's, and
// seldom one of the allocator's.
void handle(int number, siginfo_t* info, void* context) {
  Machine& m = machine();
  const Trespass found = trespass(info->si_addr, was_write(context));
  if (found.deed.empty()) return pass_on(number, info, context);
  if (found.at && m.options.host_access == HostAccess::kNote) {
    m.races.add(RaceKind::kHostAccess, nullptr,
                make_place(found.deed, "the host", "", m.options.callers), found.at);
    if (found.block != nullptr) m.memory.open_once(*found.block);
    return;
  }
  const std::string line =
      "FakeCuda: " + found.deed +
      (found.at ? ", of " + describe(*found.at) : ", where no tensor is (any more)") + "\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  ::signal(number, SIG_DFL);  // the access is tried again when this returns
}

}  // namespace

void catch_faults() {
  struct sigaction action{};
  action.sa_sigaction = &handle;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGSEGV, &action, &former);
}

}  // namespace lockstep::inline v0::testing::fake
