// Checkpoints of what is on devices: a snapshot is a copy in the device's order, and the host waits for none.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <string>

#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/device/stream.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"
#include "lockstep/testing/fake_cuda/nccl_ranks_test.h"

namespace lockstep::inline v0::testing {
namespace {

class SnapshotsOnFakeCuda : public WithoutRaces {};

at::Tensor weight_of(int rank, int number) {
  return at::arange(300, at::kFloat).view({20, 15}).add(100 * rank + number);
}

// Of both kinds of memory, and one tensor whose elements are not in the file's order.
Checkpoint share_of(const at::Tensor& weight, int rank) {
  Checkpoint share;
  const std::string name = "layer" + std::to_string(rank);
  share.model.tensors = {{name + ".weight", weight}, {name + ".across", weight.t()}};
  share.optimizer.metadata = {{"optimizer", "AdamW"}};
  const at::Tensor half = weight.flatten().narrow(0, 0, 150);
  share.optimizer.tensors[std::to_string(rank) + ".exp_avg"] = slice_of({150}, {1}, 0, half);
  if (rank == 0) {
    share.ranks.tensors = {{"cpu_generator", at::full({2, 4}, 5, at::kInt)}};
    share.trainer_json = "{}";
  }
  return share;
}

void expect_written(const std::filesystem::path& path, int number) {
  const Checkpoint checkpoint = read_checkpoint(path);  // compares checksums
  for (const int rank : {0, 1}) {
    const std::string name = "layer" + std::to_string(rank);
    const at::Tensor weight = weight_of(rank, number);
    EXPECT_TRUE(checkpoint.model.find(name + ".weight")->equal(weight)) << name;
    EXPECT_TRUE(checkpoint.model.find(name + ".across")->equal(weight.t())) << name;
  }
}

// Twice, since the second one finds memory of the first.
TEST_F(SnapshotsOnFakeCuda, StopNoHost) {
  const TestDirectory dir;
  run_on_nccl(2, [&](Communicator& comm) {
    CheckpointWriter writer(comm);
    at::Tensor weight = weight_of(comm.rank(), 0).to(comm.device());
    for (int number = 0; number < 2; ++number) {
      const Checkpoint share = share_of(weight, comm.rank());
      const Counting counted;
      writer.start(dir / std::to_string(number), share, {.snapshot = true});
      weight.add_(1);
      EXPECT_EQ(counted.stops(), 0) << counted.counts().text();
      writer.wait();
    }
  });
  for (int number = 0; number < 2; ++number) expect_written(dir / std::to_string(number), number);
}

// The writer's thread comes after the stream that its caller was on.
TEST_F(SnapshotsOnFakeCuda, WithoutOneTheCallersStreamComesFirst) {
  const TestDirectory dir;
  run_on_nccl(2, [&](Communicator& comm) {
    const c10::Stream side = device::side_stream(comm.device());
    device::order(device::current_stream(comm.device()), side);
    const c10::StreamGuard on_side(side);
    const at::Tensor weight = weight_of(comm.rank(), 0).to(comm.device()).add(3);
    write_checkpoint(comm, dir / "c", share_of(weight, comm.rank()));
  });
  expect_written(dir / "c", 3);
}

}  // namespace
}  // namespace lockstep::inline v0::testing
