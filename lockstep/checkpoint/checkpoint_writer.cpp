#include "lockstep/checkpoint/checkpoint_writer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/internal/checkpoint_files.h"
#include "lockstep/checkpoint/internal/partial_directory.h"
#include "lockstep/checkpoint/on_root.h"
#include "lockstep/checkpoint/small_file.h"
#include "lockstep/comm/objects.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"

namespace lockstep {
namespace fs = std::filesystem;
namespace {

using internal::FileTurn;
using internal::WrittenShare;

constexpr auto kFirstPause = std::chrono::milliseconds(2);
constexpr auto kLongestPause = std::chrono::milliseconds(50);
// Between two ranks' files: longer than any disk needs, for a rank that can no longer say anything.
constexpr auto kPatience = std::chrono::minutes(30);
constexpr int kNice = 10;           // writing is to give way to computing
constexpr int64_t kAlignment = 64;  // bytes
constexpr size_t kHugePage = 2 << 20;

fs::path report_of(const fs::path& directory, int rank) {
  return directory / ("rank-" + std::to_string(rank) + ".json");
}

std::string message_of(const std::exception_ptr& failure) {
  if (!failure) return "";
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return *error.what() != 0 ? error.what() : "an exception without a message";
  } catch (...) {
    return "an unknown exception";
  }
}

int64_t aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Memory for a copy of tensors, given out piece by piece.
class Pieces {
 public:
  explicit Pieces(at::Tensor memory) : memory_(std::move(memory)) {}

  at::Tensor copy(const at::Tensor& tensor) {
    const auto bytes = static_cast<int64_t>(tensor.numel() * tensor.element_size());
    const at::Tensor place =
        memory_.narrow(0, used_, bytes).view(tensor.scalar_type()).view(tensor.sizes());
    place.copy_(tensor);
    used_ += aligned(bytes);
    return place;
  }

 private:
  at::Tensor memory_;
  int64_t used_ = 0;
};

}  // namespace

struct CheckpointWriter::Job {
  Checkpoint share;
  fs::path path;
  fs::path directory;  // of this attempt
  FileTurn model, optimizer;
  int rank = 0, size = 1;
  std::function<void()> published;
  std::optional<internal::PartialDirectory> partial;  // of rank 0
  std::atomic<bool> given_up{false};                  // by the caller
  // Of the thread, once it has ended: why, and that it was for want of another rank's part.
  std::exception_ptr failure;
  bool missed = false;
  std::thread thread;

  ~Job() {
    given_up = true;
    if (thread.joinable()) thread.join();
  }

  void run() noexcept {
    // Of this thread alone, on Linux; a mere hint.
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
    try {
      const at::NoGradGuard no_grad;
      const WrittenShare own = write_share(directory, share, model, optimizer);
      if (rank != 0)
        write_file_aside(report_of(directory, rank), to_json(own));
      else
        finish(own);
    } catch (...) {
      fail();
    }
  }

  // Keeps the exception at hand, and lets rank 0 know of it, which has to wait otherwise.
  void fail() noexcept {
    failure = std::current_exception();
    partial.reset();
    if (rank == 0) return;
    try {
      write_file_aside(report_of(directory, rank), internal::failure_json(message_of(failure)));
    } catch (...) {  // wait() tells it
    }
  }

  void finish(const WrittenShare& own) {
    std::vector<WrittenShare> written{own};
    for (int r = 1; r < size; ++r) written.push_back(wait_for(r));
    write_rest(directory, share, written);
    partial->publish();
    partial.reset();
    if (published) published();
  }

  WrittenShare wait_for(int r) {
    const fs::path report = report_of(directory, r);
    const auto end = std::chrono::steady_clock::now() + kPatience;
    auto pause = kFirstPause;
    std::error_code error;
    while (!fs::exists(report, error)) {
      if (given_up || std::chrono::steady_clock::now() > end) {
        missed = true;
        throw CheckpointError(path.string() + ": rank " + std::to_string(r) +
                              " has not written its part; there is no new checkpoint");
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, kLongestPause);
    }
    WrittenShare written =
        internal::written_from_json(read_small_file(report), "rank " + std::to_string(r));
    fs::remove(report, error);
    return written;
  }
};

CheckpointWriter::CheckpointWriter(Communicator comm) : comm_(std::move(comm)) {}

CheckpointWriter::~CheckpointWriter() = default;

Checkpoint CheckpointWriter::copied(const Checkpoint& share) {
  int64_t bytes = 0;
  const auto count = [&](const at::Tensor& tensor) {
    bytes += aligned(static_cast<int64_t>(tensor.numel() * tensor.element_size()));
  };
  for (const auto& [name, tensor] : share.model.tensors) count(tensor);
  for (const auto& [name, tensor] : share.optimizer.tensors) {
    for (const TensorSlice& slice : tensor.slices) count(slice.values);
  }
  for (const auto& [name, tensor] : share.ranks.tensors) count(tensor);
  for (const auto& [name, part] : share.tensors) {
    for (const auto& [inner, tensor] : part.tensors) count(tensor);
  }
  if (!memory_.defined() || memory_.numel() < bytes) {
    memory_ = at::Tensor();  // the former first
    memory_ = at::empty({bytes}, at::kByte);
    // Whole huge pages within it: the first copy then costs few page faults.
    const auto begin = reinterpret_cast<uintptr_t>(memory_.mutable_data_ptr());
    const uintptr_t from = (begin + kHugePage - 1) / kHugePage * kHugePage;
    const uintptr_t to = (begin + static_cast<uintptr_t>(bytes)) / kHugePage * kHugePage;
    if (from < to) ::madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);
  }
  const at::NoGradGuard no_grad;
  Pieces pieces(memory_);
  Checkpoint copy = share;
  for (auto& [name, tensor] : copy.model.tensors) tensor = pieces.copy(tensor);
  for (auto& [name, tensor] : copy.optimizer.tensors) {
    for (TensorSlice& slice : tensor.slices) slice.values = pieces.copy(slice.values);
  }
  for (auto& [name, tensor] : copy.ranks.tensors) tensor = pieces.copy(tensor);
  for (auto& [name, part] : copy.tensors) {
    for (auto& [inner, tensor] : part.tensors) tensor = pieces.copy(tensor);
  }
  return copy;
}

void CheckpointWriter::start(const fs::path& path, const Checkpoint& share,
                             const WriteOptions& options) {
  if (job_) wait();
  auto job = std::make_unique<Job>();
  job->rank = comm_.rank();
  job->size = comm_.size();
  job->published = options.published;
  std::vector<bool> models, optimizers;
  const std::string attempt =
      broadcast_object(comm_, internal::new_attempt(), 0).get<std::string>();
  // Nobody writes for a former attempt any more once all have come here.
  for (const nlohmann::json& has :
       all_gather_object(comm_, nlohmann::json::array({!share.model.tensors.empty(),
                                                       !share.optimizer.tensors.empty()}))) {
    models.push_back(has.at(0).get<bool>());
    optimizers.push_back(has.at(1).get<bool>());
  }
  on_root(comm_, [&] {
    internal::check_further_names(share);
    job->partial.emplace(path, attempt);
  });
  job->path = path;
  job->directory = internal::attempt_directory(path, attempt);
  job->model = internal::turns_of(models)[static_cast<size_t>(job->rank)];
  job->optimizer = internal::turns_of(optimizers)[static_cast<size_t>(job->rank)];
  job_ = std::move(job);
  try {
    job_->share = options.snapshot ? copied(share) : share;
    job_->thread = std::thread([job = job_.get()] { job->run(); });
  } catch (...) {
    job_->fail();  // for wait(), where all ranks are
  }
}

void CheckpointWriter::wait() {
  if (!job_) return;
  const std::unique_ptr<Job> job = std::move(job_);
  const auto join = [&] {
    if (job->thread.joinable()) job->thread.join();
  };
  if (job->rank != 0) join();
  // All have written or failed, and a rank that died is known: rank 0 no longer waits in vain.
  const auto told =
      all_gather_object(comm_, job->rank == 0 ? std::string() : message_of(job->failure));
  std::string of_others;
  for (size_t r = 1; r < told.size() && of_others.empty(); ++r) {
    const auto text = told[r].get<std::string>();
    if (!text.empty()) of_others = "rank " + std::to_string(r) + ": " + text;
  }
  on_root(comm_, [&] {
    if (!of_others.empty()) job->given_up = true;
    join();
    if (!job->failure) return;
    if (job->missed && !of_others.empty()) throw CheckpointError(of_others);
    std::rethrow_exception(job->failure);
  });
}

void write_checkpoint(Communicator& comm, const fs::path& path, const Checkpoint& share,
                      const WriteOptions& options) {
  CheckpointWriter writer(comm);
  writer.start(path, share, options);
  writer.wait();
}

}  // namespace lockstep
