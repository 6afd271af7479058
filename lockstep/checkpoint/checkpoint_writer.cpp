#include "lockstep/checkpoint/checkpoint_writer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
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
#include "lockstep/core/exception_text.h"
#include "lockstep/core/pages.h"
#include "lockstep/device/event.h"
#include "lockstep/device/memory.h"
#include "lockstep/device/stream.h"

namespace lockstep::inline v0 {
namespace fs = std::filesystem;
namespace {

using internal::WrittenShare;

constexpr auto kFirstPause = std::chrono::milliseconds(2);
constexpr auto kLongestPause = std::chrono::milliseconds(8);
// The maximum time between two ranks' files: longer than any disk needs, for ranks that can no
// longer report.
constexpr auto kPatience = std::chrono::minutes(30);
constexpr int kNice = 10;

fs::path report_of(const fs::path& directory, int rank) {
  return directory / ("rank-" + std::to_string(rank) + ".json");
}

// The report is removed when rank 0 has read it, so it need not be durable.
void report(const fs::path& directory, int rank, const std::string& text) {
  AsideFile file(report_of(directory, rank));
  file.write(text);
  file.commit_unsynced();
}

// The next aligned offset for a file that is written past the page cache.
size_t aligned(size_t bytes) {
  return (bytes + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
}

// Memory that is pinned if the ranks train on devices, and otherwise lies in large pages.
at::Tensor memory_for(size_t bytes, at::Device device) {
  const auto size = static_cast<int64_t>(bytes);
  if (!device.is_cpu()) return device::empty_pinned({size}, at::kByte, device);
  const auto pages = std::make_shared<PageMemory>(bytes);
  return at::from_blob(pages->data(), {size}, [pages](void*) {}, at::kByte);
}

}  // namespace

struct CheckpointWriter::Job {
  internal::ShareToWrite share;
  internal::RestToWrite rest;  // only on rank 0
  fs::path path;
  fs::path directory;  // the directory of this attempt
  int rank = 0, size = 1;
  bool snapshot = false;  // it then yields the processors to the training
  // The caller's stream position: values, or a snapshot's copies.
  device::Event given;
  std::function<void()> published;
  std::optional<internal::PartialDirectory> partial;  // only on rank 0
  std::atomic<bool> given_up{false};                  // set by the caller
  // Set by the thread when it has ended: its error, and whether only another rank's part was
  // missing.
  std::exception_ptr failure;
  bool missed = false;
  std::thread thread;

  explicit Job(at::Device device) : given(device) {}
  ~Job() {
    given_up = true;
    if (thread.joinable()) thread.join();
  }

  void run() noexcept {
    // For this thread alone, on Linux; only a hint.
    if (snapshot) ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
    try {
      if (snapshot)
        given.synchronize();
      else if (!given.device().is_cpu())
        given.block(device::current_stream(given.device()));
      internal::FilesUnderWay files(directory);
      const WrittenShare own = write_share(files, share);
      if (rank == 0) {
        finish(files, own);
      } else {
        files.commit();
        report(directory, rank, to_json(own));
      }
    } catch (...) {
      fail();
    }
  }

  // Keeps the current exception, and reports it to rank 0, which would otherwise wait.
  void fail() noexcept {
    failure = std::current_exception();
    partial.reset();
    if (rank == 0) return;
    try {
      report(directory, rank, internal::failure_json(exception_text(failure)));
    } catch (...) {  // wait() reports it
    }
  }

  void finish(internal::FilesUnderWay& files, const WrittenShare& own) {
    std::vector<WrittenShare> written{own};
    for (int r = 1; r < size; ++r) written.push_back(wait_for(r));
    write_rest(files, rest, written);
    files.commit();
    partial->publish();
    if (published) published();
    partial.reset();  // drops the previous one
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

void CheckpointWriter::take_snapshot() {
  size_t bytes = 0;
  for (auto* files : {&job_->share.files, &job_->rest.files}) {
    for (const internal::NamedFile& file : *files) bytes += aligned(file.contents.bytes());
  }
  std::byte* const memory = snapshot_memory(bytes);
  size_t used = 0;
  for (auto* files : {&job_->share.files, &job_->rest.files}) {
    for (internal::NamedFile& file : *files) {
      file.contents.snapshot(memory + used, comm_.device());
      used += aligned(file.contents.bytes());
    }
  }
  // Ordered after all of the host's writes to that memory.
  for (auto* files : {&job_->share.files, &job_->rest.files})
    for (internal::NamedFile& file : *files) file.contents.copy_from_device();
}

// At least this many bytes, at a multiple of kDirectAlignment; the former memory is freed first.
std::byte* CheckpointWriter::snapshot_memory(size_t bytes) {
  size_t left = bytes + kDirectAlignment;
  if (!memory_.defined() || memory_.nbytes() < left) {
    memory_ = at::Tensor();
    memory_ = memory_for(left, comm_.device());
  }
  void* at = memory_.mutable_data_ptr();
  return static_cast<std::byte*>(std::align(kDirectAlignment, bytes, at, left));
}

void CheckpointWriter::start(const fs::path& path, const Checkpoint& share,
                             const WriteOptions& options) {
  if (job_) wait();
  auto job = std::make_unique<Job>(comm_.device());
  job->rank = comm_.rank();
  job->size = comm_.size();
  job->published = options.published;
  job->snapshot = options.snapshot;
  std::vector<bool> models, optimizers;
  bool in_slices = false;
  const std::string attempt =
      broadcast_object(comm_, internal::new_attempt(), 0).get<std::string>();
  // No rank writes for a former attempt any more once all have arrived here.
  for (const nlohmann::json& has : all_gather_object(
           comm_,
           nlohmann::json::array({!share.model.tensors.empty(), !share.optimizer.tensors.empty(),
                                  !share.model_slices.tensors.empty()}))) {
    models.push_back(has.at(0).get<bool>() || has.at(2).get<bool>());
    optimizers.push_back(has.at(1).get<bool>());
    in_slices = in_slices || has.at(2).get<bool>();
  }
  on_root(comm_, [&] {
    internal::check_further_names(share);
    job->partial.emplace(path, attempt);
  });
  job->path = path;
  job->directory = internal::attempt_directory(path, attempt);
  const auto rank = static_cast<size_t>(job->rank);
  job_ = std::move(job);
  try {
    const at::NoGradGuard no_grad;
    job_->share = internal::share_to_write(share, internal::turns_of(models)[rank],
                                           internal::turns_of(optimizers)[rank], in_slices);
    if (rank == 0)
      job_->rest = internal::rest_to_write(share);
    else
      internal::add_further_tensors(share, job_->share);
    if (options.snapshot) take_snapshot();
    job_->given.record();
    job_->thread = std::thread([job = job_.get(), around = options.around] {
      if (around)
        around([job] { job->run(); });
      else
        job->run();
    });
  } catch (...) {
    job_->fail();  // reported by wait(), where all ranks meet
    // Copies that were submitted already use the memory until they end.
    job_->given.record();
    job_->given.synchronize();
  }
}

void CheckpointWriter::wait() {
  if (!job_) return;
  const std::unique_ptr<Job> job = std::move(job_);
  const auto join = [&] {
    if (job->thread.joinable()) job->thread.join();
  };
  if (job->rank != 0) join();
  // After this exchange all ranks have written or failed, and the death of a rank is known, so rank
  // 0 does not wait in vain.
  const auto told =
      all_gather_object(comm_, job->rank == 0 ? std::string() : exception_text(job->failure));
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

}  // namespace lockstep::inline v0
