// What it costs to save a model under ZeRO-3, of which every rank writes its part, while it trains:
//
//   lockstep run --nproc 2 build/release/bin/bench/sharded_checkpoints FOLDER
//
// In rounds, each of all of these, one line a quantity with median and range:
//   write      bytes a second of a whole checkpoint on the disk (checksums, fsync, exchange), over
//              what the same ranks write of a copy of their bytes with O_DIRECT and fsync, as many
//              pieces at once, in the same round; in both cases what was there before is removed afterwards
//   stall      milliseconds that start() takes with a snapshot, less those of a plain copy
//   beside     time of a step while a checkpoint is written, over that of one without
//   every 10   time of ten steps and a save, over that of ten steps
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/pages.h"
#include "lockstep/core/parallel_blocks.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/optim/decay_groups.h"
#include "lockstep/train/run_state.h"
#include "lockstep/train/strategy.h"

namespace lockstep::inline v0 {
namespace {

namespace fs = std::filesystem;

constexpr int kRounds = 7;
constexpr int64_t kWidth = 2048;
constexpr int kLayers = 12;         // of 4.2 million parameters each
constexpr int64_t kRows = 64;       // a rank and step
constexpr size_t kPiece = 1 << 20;  // of a direct write
constexpr int kUnderWay = 8;        // of them

class Bench {
 public:
  Bench(Communicator comm, fs::path folder) : comm_(std::move(comm)), folder_(std::move(folder)) {
    for (int i = 0; i < kLayers; ++i) {
      net_->push_back(torch::nn::Linear(kWidth, kWidth));
      net_->push_back(torch::nn::ReLU());
    }
    strategy_->set_up(net_.ptr(), comm_);
    optimizer_ = strategy_->state().make_optimizer(
        {torch::optim::OptimizerParamGroup(net_->parameters())}, torch::optim::AdamWOptions(1e-4));
    input_ = at::randn({kRows, kWidth});
    steps(2);
  }

  void run() {
    std::vector<double> write, direct, ratio, stall, copy, beside, ten;
    for (int round = 0; round <= kRounds; ++round) {
      const double bytes = static_cast<double>(share_bytes());
      copy_all();
      const double direct_s = longest([&] { write_directly(static_cast<size_t>(bytes)); });
      fs::remove(direct_file());
      const double write_s = seconds_to_disk();
      const double copy_s = longest([&] { copy_all(); });
      double stall_s = 0;
      const double plain_s = longest([&] { steps(10); });
      const double saving_s = longest([&] {
        stall_s = seconds([&] { writer_.start(path(), share(), {.snapshot = true}); });
        steps(10);
      });
      writer_.wait();
      stall_s = greatest(stall_s);
      const double beside_ratio = steps_beside(plain_s / 10);
      if (round == 0) continue;  // memory is touched, files are there
      direct.push_back(bytes * comm_.size() / direct_s / 1e9);
      write.push_back(bytes * comm_.size() / write_s / 1e9);
      ratio.push_back(direct_s / write_s);
      copy.push_back(copy_s * 1e3);
      stall.push_back((stall_s - copy_s) * 1e3);
      ten.push_back(saving_s / plain_s);
      beside.push_back(beside_ratio);
    }
    const double mib = static_cast<double>(share_bytes()) / (1 << 20);
    if (comm_.rank() != 0) return;
    std::printf("%d ranks, %.0f MiB a rank\n", comm_.size(), mib);
    print("direct write, GB/s", direct);
    print("checkpoint, GB/s", write);
    print("checkpoint / direct", ratio);
    print("copy of a rank's bytes, ms", copy);
    print("stall beyond it, ms", stall);
    print("a step while writing / without", beside);
    print("ten steps and a save / ten", ten);
  }

 private:
  static double seconds(const std::function<void()>& f) {
    const auto start = std::chrono::steady_clock::now();
    f();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  double greatest(double value) {
    const at::Tensor tensor = at::full({1}, value, at::kDouble);
    comm_.all_reduce(tensor, ReduceOp::kMax);
    return tensor.item<double>();
  }
  // Of all ranks, from one start.
  double longest(const std::function<void()>& f) {
    comm_.barrier();
    return greatest(seconds(f));
  }
  static void print(const char* what, std::vector<double> values) {
    std::sort(values.begin(), values.end());
    std::printf("%-32s %8.3f  (%.3f to %.3f)\n", what, values[values.size() / 2], values.front(),
                values.back());
  }

  fs::path path() const { return folder_ / "checkpoint"; }
  fs::path direct_file() const { return folder_ / ("direct-" + std::to_string(comm_.rank())); }
  // Of all ranks' checkpoint, until it is in place.
  double seconds_to_disk() {
    comm_.barrier();
    const auto start = std::chrono::steady_clock::now();
    double spent = 0;  // known on rank 0
    write_checkpoint(comm_, path(), share(), {.published = [&] {
                       const auto end = std::chrono::steady_clock::now();
                       spent = std::chrono::duration<double>(end - start).count();
                     }});
    return greatest(spent);
  }
  Checkpoint share() { return share_of_run_state(*strategy_, *optimizer_, nullptr, {}); }
  int64_t share_bytes() {
    const Checkpoint own = share();
    int64_t bytes = own.optimizer.bytes();
    for (const auto& [name, tensor] : own.model.tensors)
      bytes += static_cast<int64_t>(tensor.nbytes());
    return bytes;
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) {
      optimizer_->zero_grad();
      strategy_->gradients().compute([&] { return net_->forward(input_).square().mean(); });
      strategy_->state().step(*optimizer_);
    }
  }
  // The two steps after a checkpoint was begun, while it is being written.
  double steps_beside(double plain) {
    writer_.start(path(), share(), {.snapshot = true});
    comm_.barrier();
    const int count = 2;
    const double spent = longest([&] { steps(count); });
    writer_.wait();
    return spent / count / plain;
  }
  void copy_all() {
    const Checkpoint own = share();
    if (!copy_.defined()) {
      pages_ = std::make_unique<PageMemory>(static_cast<size_t>(share_bytes()) + kPiece);
      copy_ = at::from_blob(pages_->data(), {static_cast<int64_t>(pages_->bytes())}, at::kByte);
    }
    int64_t used = 0;
    const auto copy = [&](const at::Tensor& tensor) {
      const auto bytes = static_cast<int64_t>(tensor.nbytes());
      copy_.narrow(0, used, bytes).view(tensor.scalar_type()).view(tensor.sizes()).copy_(tensor);
      used += bytes;
    };
    const at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : own.model.tensors) copy(tensor);
    for (const auto& [name, tensor] : own.optimizer.tensors) {
      if (tensor.dtype == at::kFloat) copy(tensor.slices[0].values);
    }
  }
  // kUnderWay pieces at once.
  void write_directly(size_t bytes) {
    const fs::path file = direct_file();
    const UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT, 0666));
    if (!fd) throw system_error("cannot write " + file.string(), errno);
    const auto pieces = static_cast<int64_t>((bytes + kPiece - 1) / kPiece);
    if (::posix_fallocate(fd.get(), 0, static_cast<off_t>(pieces * kPiece)) != 0)
      throw Error("no room for " + file.string());
    parallel_blocks(pieces, 1, kUnderWay, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const size_t at = static_cast<size_t>(i) * kPiece;
        if (::pwrite(fd.get(), pages_->data() + at, kPiece, static_cast<off_t>(at)) !=
            static_cast<ssize_t>(kPiece))
          throw system_error("cannot write " + file.string(), errno);
      }
    });
    ::fsync(fd.get());
  }

  Communicator comm_;
  fs::path folder_;
  torch::nn::Sequential net_;
  std::shared_ptr<Strategy> strategy_ = make_strategy("zero3");
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  CheckpointWriter writer_{comm_};
  at::Tensor input_, copy_;
  std::unique_ptr<PageMemory> pages_;  // of copy_
};

}  // namespace
}  // namespace lockstep::inline v0

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: lockstep run --nproc 2 sharded_checkpoints FOLDER\n", stderr);
    return 2;
  }
  try {
    std::filesystem::create_directories(argv[1]);
    lockstep::Bench(lockstep::init(), argv[1]).run();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sharded_checkpoints: %s\n", error.what());
    return 1;
  }
}
