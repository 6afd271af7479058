// Checkpoints that all ranks write together, while training goes on if it may: every rank writes the
// tensors that it has, and rank 0 makes one checkpoint of them (checkpoint_directory.h).
//
//   CheckpointWriter writer(comm);
//   writer.start("checkpoint-100", share, {.snapshot = true});   // takes as long as a copy
//   ...                                                          // steps
//   writer.wait();                                               // now it is there
//
// No rank sends tensors to another. Each writes its files into PATH.partial, on a thread of its own,
// and says there what it has written, with checksums; rank 0's thread waits for that, writes indices
// and checksums and puts the directory in place. So PATH must be one directory for all ranks: on
// several hosts a shared file system.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/comm/communicator.h"

namespace lockstep {

struct WriteOptions {
  // Copies all of this rank's tensors first, as the bytes of its files, so that they may change while they are
  // written; the copy's memory is kept for the next time. Where comm.device() is none of the host, it is pinned, and
  // tensors there are copied in the order of the current stream: the host does not wait, and they may be changed by
  // what that stream is given next. False: they must not change before wait() has returned.
  bool snapshot = false;
  // Rank 0 calls it, on the writer's thread, once the checkpoint is in place; what it throws is what
  // wait() throws. Must not communicate.
  std::function<void()> published = {};
};

// One thread calls. Not copyable, not movable.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(Communicator comm);
  // Does not communicate, and waits for this rank's files at most: what not all ranks have written
  // by then is no checkpoint, and what was at its path remains. Call wait() before.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Begins to write. Of `share` every rank gives the tensors of `model` and the slices of
  // `model_slices` and `optimizer` that it writes: each on one rank. Where one rank alone has some,
  // they are one file. The rest is rank 0's, the metadata of both included; others' is ignored.
  // First waits for a checkpoint that is still being written. Collective; throws what wait() throws,
  // and as write_checkpoint() for what cannot be begun.
  void start(const std::filesystem::path& path, const Checkpoint& share,
             const WriteOptions& options = {});
  // Returns once the checkpoint is in place; at once if none was begun since the last wait().
  // Collective. Throws on every rank if it could not be written: SystemError or CheckpointError that
  // names the rank; then what was at the path is as it was, unless `published` threw. A rank that dies
  // meanwhile is PeerLost; one whose disk takes longer than the communicator's timeout, Timeout.
  void wait();
  // Between start() and wait(): the same on all ranks.
  bool under_way() const { return job_ != nullptr; }

 private:
  struct Job;
  void take_snapshot();  // of the job
  std::byte* snapshot_memory(size_t bytes);

  Communicator comm_;
  at::Tensor memory_;  // of the snapshot
  std::unique_ptr<Job> job_;
};

// start() and wait().
void write_checkpoint(Communicator& comm, const std::filesystem::path& path,
                      const Checkpoint& share, const WriteOptions& options = {});

}  // namespace lockstep
