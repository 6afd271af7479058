#include "lockstep/bench/spin_barrier.h"

#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "lockstep/core/cpus.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/ticks.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0::bench {
namespace {

constexpr size_t kPathBytes = 4096;

// Makes a new file of zeros, or opens the one at `path`.
UniqueFd open_page(std::string& path, size_t bytes) {
  if (!path.empty()) return UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  path = (std::filesystem::temp_directory_path() / "lockstep-barrier-XXXXXX").string();
  UniqueFd fd(::mkostemp(path.data(), O_CLOEXEC));
  if (fd && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) fd.reset();
  return fd;
}

}  // namespace

SpinBarrier::SpinBarrier(Communicator& comm)
    : comm_(comm), spin_(comm.local_size() <= usable_cpu_count()) {
  if (comm.local_size() != comm.size()) return;
  // Rank 0 makes a file, tells its name, and removes the name once all ranks have opened it.
  std::string path;
  UniqueFd fd;
  const at::Tensor name = at::zeros({static_cast<int64_t>(kPathBytes)}, at::kByte);
  if (comm.rank() == 0) {
    fd = open_page(path, sizeof(Page));
    if (fd) std::memcpy(name.mutable_data_ptr(), path.data(), path.size());
  }
  comm.broadcast(name, 0);
  if (comm.rank() != 0) {
    path = static_cast<const char*>(name.const_data_ptr());
    if (!path.empty()) fd = open_page(path, sizeof(Page));
  }
  void* memory = fd ? ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0)
                    : MAP_FAILED;
  const int error = errno;
  comm.barrier();
  if (comm.rank() == 0 && fd) ::unlink(path.c_str());
  if (memory == MAP_FAILED) throw system_error("a page shared by the ranks, in " + path, error);
  page_ = static_cast<Page*>(memory);
}

SpinBarrier::~SpinBarrier() {
  if (page_ != nullptr) ::munmap(page_, sizeof(Page));
}

void SpinBarrier::pass() {
  if (page_ == nullptr) return comm_.barrier();
  const int32_t turn = page_->opened.load(std::memory_order_acquire);
  if (page_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == comm_.size()) {
    page_->arrived.store(0, std::memory_order_relaxed);
    page_->opened.store(turn + 1, std::memory_order_release);
    return;
  }
  const Deadline deadline = Deadline::after(comm_.timeout());
  for (int64_t i = 1; page_->opened.load(std::memory_order_acquire) == turn; ++i) {
    if (spin_ && i < 1'000'000) {
      cpu_pause();
      continue;
    }
    ::sched_yield();
    if (i % 1024 == 0 && deadline.expired())
      throw Timeout("bench: a rank did not arrive at the barrier");
  }
}

}  // namespace lockstep::inline v0::bench
