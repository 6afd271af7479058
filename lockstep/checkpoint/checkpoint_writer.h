// Checkpoints that all ranks write together, optionally while training continues: every rank writes
// its own tensors, and rank 0 makes one checkpoint of them (checkpoint_directory.h).
//
//   CheckpointWriter writer(comm);
//   writer.start("checkpoint-100", share, {.snapshot = true});   // takes as long as a copy
//   ...                                                          // steps
//   writer.wait();                                               // now it is complete
//
// No rank sends tensors to another. Each writes its files into PATH.partial, on a thread of its
// own, and reports there what it has written, with checksums. Rank 0's thread waits for the
// reports, writes indices and checksums and moves the directory to its place. PATH must therefore
// be one directory for all ranks: on several hosts a shared file system.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// How a CheckpointWriter writes one checkpoint.
struct WriteOptions {
  // Copies all of this rank's tensors first, as the bytes of its files, so that they may change
  // while they are written; the copy's memory is reused. If comm.device() is not the host, that
  // memory is pinned, and tensors there are copied in the order of the current stream: the host
  // does not wait, and later work of that stream may change them. False: they must not change
  // before wait() has returned.
  bool snapshot = false;
  // Rank 0 calls it, on the writer's thread, once the checkpoint is in place; wait() rethrows its
  // exception. It must not communicate.
  std::function<void()> published = {};
  // Called on the writer's thread with its work, which it must run once. For those who measure it.
  // It must not throw. Empty: the work runs by itself.
  std::function<void(const std::function<void()>& work)> around = {};
};

// Not copyable, not movable.
// Thread-safety: one thread.
class LOCKSTEP_API CheckpointWriter {
 public:
  explicit CheckpointWriter(Communicator comm);
  // Does not communicate, and waits at most for this rank's files: a checkpoint that not all ranks
  // have written by then is not published, and the former one remains. Call wait() before.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Starts to write. Every rank gives in `share` the tensors of `model` and the slices of
  // `model_slices` and `optimizer` that it writes, each on one rank. Where one rank alone has some,
  // they are one file. `tensors` are files of their own, with names that no other rank gives. The
  // rest, including the metadata of model and optimizer, is rank 0's; that of others is ignored.
  // First waits for a checkpoint that is still being written.
  // Collective: all ranks call it.
  // Throws: as wait(), and as write_checkpoint() where it cannot start.
  void start(const std::filesystem::path& path, const Checkpoint& share,
             const WriteOptions& options = {});
  // Returns once the checkpoint is in place; at once if none was started since the last wait().
  // Collective: all ranks call it.
  // Throws: SystemError or CheckpointError that names the rank, on every rank, if it could not be
  // written; then the former checkpoint is unchanged, unless `published` threw. PeerLost if a rank
  // dies meanwhile; Timeout if a rank's disk takes longer than the communicator's time-out.
  void wait();
  // Whether it is between start() and wait(): the same on all ranks.
  bool under_way() const { return job_ != nullptr; }

 private:
  struct Job;
  void take_snapshot();  // for the job
  std::byte* snapshot_memory(size_t bytes);

  Communicator comm_;
  at::Tensor memory_;  // for the snapshot
  std::unique_ptr<Job> job_;
};

// start() and wait().
LOCKSTEP_API void write_checkpoint(Communicator& comm, const std::filesystem::path& path,
                                   const Checkpoint& share, const WriteOptions& options = {});

}  // namespace lockstep::inline v0
