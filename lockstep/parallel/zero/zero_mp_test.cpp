// ZeroOptimizer among processes: on one host, whose memory the kernel counts, and on several.
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/stat.h>
#include <torch/types.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/hosts_test.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/memory_limit.h"
#include "lockstep/optim/adam.h"
#include "lockstep/parallel/zero/layer_net.h"
#include "lockstep/parallel/zero/test_net.h"
#include "lockstep/parallel/zero/zero_optimizer.h"

namespace lockstep::inline v0::zero_mp_test {
namespace {

using ::testing::HasSubstr;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;
using zero_test::LayerNet;
using zero_test::named_trained;
using zero_test::TestNet;

// Twenty steps of all ranks equal those of one process.
void expect_one_process(Communicator& comm, int stage) {
  TestNet one, net;
  optim::FusedAdamW reference(zero_test::trained(one), AdamWOptions(1e-2));
  ZeroOptimizer optimizer(comm, named_trained(net), AdamWOptions(1e-2),
                          {.stage = stage, .bucket_sizes = {.first = 200, .rest = 300}});
  for (int step = 0; step < 20; ++step) {
    reference.zero_grad();
    zero_test::loss_of(one, step).backward();
    reference.step();
    zero_test::loss_of(net, step, comm.rank(), comm.size()).backward();
    optimizer.step();
  }
  EXPECT_LE(zero_test::distance(zero_test::trained(net), zero_test::trained(one)), 1e-10)
      << "stage " << stage;
}

// The same with parameters that hosts divide, one layer per unit.
void expect_one_process_by_units(Communicator& comm, bool reshard, std::vector<int> copies = {}) {
  LayerNet one(3), net(3);
  optim::FusedAdamW reference(one->parameters(), AdamWOptions(1e-2));
  ZeroOptimizer optimizer(comm, to_named_tensors(net->named_parameters()), AdamWOptions(1e-2),
                          {.stage = 3,
                           .bucket_sizes = {.first = 1200, .rest = 1200},
                           .units = {.model = net.ptr(), .reshard_after_forward = reshard},
                           .copies = std::move(copies)});
  for (int step = 0; step < 20; ++step) {
    reference.zero_grad();
    zero_test::loss_of(one, step).backward();
    reference.step();
    zero_test::loss_of(net, step, comm.rank(), comm.size()).backward();
    optimizer.step();
  }
  EXPECT_GT(optimizer.memory().units, 0);
  const auto whole = optimizer.whole_parameters();
  EXPECT_LE(zero_test::distance(net->parameters(), one->parameters()), 1e-10);
}

constexpr double kMiB = 1 << 20;

// This process's proportional share of its memory, in bytes (proc(5), smaps_rollup), without free
// memory that malloc only keeps, and without mapped files: the share of libtorch's code changes when
// other processes begin or end.
double proportional_bytes() {
  ::malloc_trim(0);
  double kib = 0;
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string line; std::getline(rollup, line);) {
    for (const std::string kind : {"Pss_Anon:", "Pss_Shmem:"})
      if (line.starts_with(kind)) kib += std::stod(line.substr(kind.size()));
  }
  return kib * 1024;
}

double sum_over_ranks(Communicator& comm, double mine) {
  const at::Tensor sum = at::full({1}, mine, at::kDouble);
  comm.all_reduce(sum);
  return sum.item<double>();
}

TEST(ZeroProcesses, EveryStageIsOneProcess) {
  testing::expect_ranks(3, [](Communicator& comm) {
    for (const int stage : {0, 1, 2, 3}) expect_one_process(comm, stage);
  });
}

// 64 MiB of parameters under AdamW among four ranks: DistributedDataParallel would take 1 GiB.
TEST(ZeroProcesses, TheKernelCountsOneCopy) {
  testing::expect_ranks(4, [](Communicator& comm) {
    constexpr double kPsi = 64.0 * (1 << 20);
    expect_one_process(comm, 3);  // loads libtorch's code and its one-time allocations
    comm.barrier();
    const double before = sum_over_ranks(comm, proportional_bytes());
    NamedTensors parameters;
    for (int i = 0; i < 16; ++i) {
      parameters.emplace_back("p" + std::to_string(i),
                              torch::full({1 << 20}, 1.0).requires_grad_());
    }
    ZeroOptimizer optimizer(comm, parameters, AdamWOptions(1e-3),
                            {.stage = 3, .bucket_sizes = {.first = 4 << 20, .rest = 4 << 20}});
    for (int step = 0; step < 2; ++step) {
      at::Tensor loss = torch::zeros({});
      for (const auto& entry : parameters) loss = loss + entry.second.sum();
      loss.backward();
      optimizer.step();
    }
    comm.barrier();
    const double used = sum_over_ranks(comm, proportional_bytes()) - before;
    const ZeroMemory memory = optimizer.memory();
    const double counted = sum_over_ranks(
        comm,
        static_cast<double>(memory.parameters + memory.gradients + memory.state + memory.buffers));
    if (comm.rank() == 0)
      std::cout << "[ measured ] " << used / kMiB << " MiB, counted " << counted / kMiB << " MiB\n";
    EXPECT_NEAR(counted, 4 * kPsi + 4 * 3.0 * (4 << 20), 0.02 * 4 * kPsi);
    EXPECT_LT(used, 1.1 * counted);
    EXPECT_GT(used, 0.95 * counted);
  });
}

// A layer that holds only a vector, and adds its sum.
struct VectorImpl : torch::nn::Module, Hookable<at::Tensor(const at::Tensor&)> {
  VectorImpl(int64_t numel, bool filled) {
    values =
        register_parameter("values", filled ? torch::full({numel}, 1.0) : torch::empty({numel}));
  }
  at::Tensor compute(const at::Tensor& x) override { return x + values.sum(); }
  at::Tensor values;
};
TORCH_MODULE(Vector);
struct VectorsImpl : torch::nn::Module {
  VectorsImpl(int count, int64_t numel, bool filled = true) {
    for (int i = 0; i < count; ++i) list->push_back(Vector(numel, filled));
    register_module("list", list);
  }
  at::Tensor forward() {
    at::Tensor x = torch::zeros({}).requires_grad_();
    for (const auto& one : *list) x = one->as<VectorImpl>()->forward(x);
    return x;
  }
  torch::nn::ModuleList list;
};
TORCH_MODULE(Vectors);

ZeroOptimizer by_units(Communicator& comm, Vectors& net, int64_t bucket, bool reshard,
                       std::vector<int> copies = {}) {
  return {comm,
          to_named_tensors(net->named_parameters()),
          AdamWOptions(1e-3),
          {.stage = 3,
           .bucket_sizes = {.first = bucket, .rest = bucket},
           .units = {.model = net.ptr(), .reshard_after_forward = reshard},
           .copies = std::move(copies)}};
}

// Two copies of 64 MiB of parameters: each process has its half, and at most two of sixteen layers.
TEST(ZeroProcesses, TheKernelCountsWhatCopiesDivide) {
  testing::expect_ranks(4, [](Communicator& comm) {
    constexpr double kPsi = 64.0 * (1 << 20);
    const std::vector<int> copies{0, 0, 1, 1};
    expect_one_process_by_units(comm, true, copies);  // libtorch's one-time allocations
    comm.barrier();
    const double before = sum_over_ranks(comm, proportional_bytes());
    Vectors net(16, 1 << 20);
    ZeroOptimizer optimizer = by_units(comm, net, 4 << 20, true, copies);
    for (int step = 0; step < 2; ++step) {
      net->forward().backward();
      optimizer.step();
    }
    comm.barrier();
    const double used = sum_over_ranks(comm, proportional_bytes()) - before;
    const ZeroMemory memory = optimizer.memory();
    const double counted = sum_over_ranks(
        comm,
        static_cast<double>(memory.parameters + memory.gradients + memory.state + memory.buffers));
    const double units = sum_over_ranks(comm, static_cast<double>(memory.units));
    if (comm.rank() == 0)
      std::cout << "[ measured ] " << used / kMiB << " MiB, counted " << counted / kMiB
                << " MiB and up to " << units / kMiB << " MiB of units\n";
    EXPECT_NEAR(counted, 4 * kPsi + 4 * 3.0 * (4 << 20), 0.02 * 4 * kPsi);
    EXPECT_NEAR(units, 2 * kPsi / 16, 0.02 * kPsi);
    EXPECT_LT(used, 1.02 * (counted + units));
    EXPECT_GT(used, 0.95 * counted);
  });
}

// A control group of this process alone with a limit, removed afterwards. Not available without a
// writable memory controller of v1 or v2.
class OwnLimit {
 public:
  explicit OwnLimit(int64_t bytes) {
    const std::optional<std::filesystem::path> parent = own_group();
    if (!parent) return;
    home_ = *parent;
    folder_ = home_ / ("lockstep-test-" + std::to_string(::getpid()));
    if (::mkdir(folder_.c_str(), 0755) != 0) return;
    for (const char* name : {"memory.limit_in_bytes", "memory.max"}) {
      if (std::filesystem::exists(folder_ / name)) std::ofstream(folder_ / name) << bytes;
    }
    there_ = put(folder_);
  }
  ~OwnLimit() {
    if (folder_.empty()) return;
    put(home_);
    ::rmdir(folder_.c_str());
  }
  OwnLimit(const OwnLimit&) = delete;
  OwnLimit& operator=(const OwnLimit&) = delete;
  // The limit may come from a group above, if this one's controller is not there.
  bool there() const {
    const auto limit = memory_limit();
    return there_ && limit && limit->group == folder_;
  }
  // The memory taken so far; 0 if the system does not report it.
  double most() const {
    double bytes = 0;
    for (const char* name : {"memory.max_usage_in_bytes", "memory.peak"})
      std::ifstream(folder_ / name) >> bytes;
    return bytes;
  }

 private:
  static std::optional<std::filesystem::path> own_group() {
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
      const size_t at = line.rfind(':');
      const bool v1 = line.find(":memory:") != std::string::npos;
      if (!v1 && !line.starts_with("0::")) continue;
      const std::filesystem::path path =
          std::filesystem::path("/sys/fs/cgroup") / (v1 ? "memory" : "") / line.substr(at + 2);
      if (std::filesystem::exists(path / (v1 ? "memory.limit_in_bytes" : "memory.max")))
        return path;
    }
    return std::nullopt;
  }
  static bool put(const std::filesystem::path& group) {
    std::ofstream file(group / "cgroup.procs");
    file << ::getpid() << std::flush;
    return file.good();
  }

  std::filesystem::path home_, folder_;
  bool there_ = false;
};

// 512 MiB of parameters, gradients and moments, with a limit of two thirds per rank, including
// about 100 MiB of libtorch: four ranks train, one is refused.
constexpr int64_t kOwnLimit = 358'000'000;

void train_born_divided(Communicator& comm) {
  at::set_num_threads(1);
  ::mallopt(M_MMAP_THRESHOLD, 4 << 20);  // freed gradients return to the system at once
  Vectors net(16, 2 << 20, /*filled=*/false);
  ZeroOptions options{.stage = 3, .bucket_sizes = {.first = 8 << 20, .rest = 8 << 20}};
  options.initial = [](const std::string&, int64_t begin, const at::Tensor& part) {
    part.copy_(torch::arange(begin, begin + part.numel(), at::kFloat).remainder(7));
  };
  ZeroOptimizer optimizer(comm, to_named_tensors(net->named_parameters()), AdamWOptions(1e-3),
                          options);
  double first = 0, last = 0;
  for (int step = 0; step < 3; ++step) {
    const at::Tensor loss = net->forward();
    (step == 0 ? first : last) = loss.item<double>();
    loss.backward();
    optimizer.step();
  }
  EXPECT_GT(first, 0);
  EXPECT_LT(last, first);
}

constexpr const char* kNoGroup = "no control group of memory can be made here";

TEST(ZeroProcesses, AModelLargerThanARanksMemoryTrainsOnFour) {
  if (!OwnLimit(kOwnLimit).there()) GTEST_SKIP() << kNoGroup;
  testing::expect_ranks(4, [](Communicator& comm) {
    const OwnLimit limit(kOwnLimit);
    ASSERT_TRUE(limit.there());
    train_born_divided(comm);
    std::cout << "[ measured ] " << limit.most() / kMiB << " MiB\n";
  });
}

TEST(ZeroProcesses, AModelLargerThanTheOnlyRanksMemoryIsOneLine) {
  if (!OwnLimit(kOwnLimit).there()) GTEST_SKIP() << kNoGroup;
  testing::expect_ranks(1, [](Communicator& comm) {
    const OwnLimit limit(kOwnLimit);
    ASSERT_TRUE(limit.there());
    EXPECT_THAT(
        message_of<InvalidArgument>([&] { train_born_divided(comm); }),
        HasSubstr("rank(s) 0 of 1 need 512 MiB for parameters, gradients, state and buffers, and "
                  "their control group allows 341 MiB; take more ranks"));
  });
}

TEST(ZeroProcesses, AnEngineWithoutSharedMemoryHasStagesZeroToTwo) {
  testing::expect_ranks(2,
                        [](Communicator& comm) {
                          for (const int stage : {1, 2}) expect_one_process(comm, stage);
                          TestNet net;
                          EXPECT_THAT(message_of<InvalidArgument>([&] {
                                        ZeroOptimizer(comm, named_trained(net), SGDOptions(1),
                                                      {.stage = 3});
                                      }),
                                      HasSubstr("backend gloo has no memory"));
                        },
                        {.backend = "gloo"});
}

class ZeroHosts : public testing::HostsTest {};

TEST_F(ZeroHosts, EveryStageIsOneProcess) {
  make_hosts(2);
  for (const std::vector<int>& hosts : {std::vector<int>{0, 0, 1, 1}, std::vector<int>{0, 0, 1}}) {
    run(
        hosts,
        [] {
          Communicator comm = init({.timeout = std::chrono::seconds(60)});
          ASSERT_EQ(comm.capabilities().backend, "hierarchical");
          for (const int stage : {1, 3}) expect_one_process(comm, stage);
          for (const bool reshard : {true, false}) expect_one_process_by_units(comm, reshard);
        },
        {}, std::to_string(hosts.size()));
  }
}

// As ZeRO's stage 3: the parameters are sent twice and the gradients once, whereas
// DistributedDataParallel's step sends twice the parameters' size; the last layer stays from its
// forward to its backward. Otherwise as much as DistributedDataParallel.
TEST_F(ZeroHosts, UnitsAreFetchedOnceAHost) {
  static constexpr int kUnits = 16;
  static constexpr int64_t kNumel = 1 << 18;
  constexpr int kSteps = 4;
  for (const bool reshard : {true, false}) {
    make_hosts(2);
    run(
        testing::places(2, 2),
        [reshard] {
          Communicator comm =
              init({.backend = "hierarchical", .timeout = std::chrono::seconds(60)});
          Vectors net(kUnits, kNumel);
          ZeroOptimizer optimizer = by_units(comm, net, kNumel * 4, reshard);
          for (int step = 0; step < kSteps; ++step) {
            net->forward().backward();
            optimizer.step();
          }
          comm.barrier();
        },
        {}, reshard ? "twice" : "once");
    if (!network_) continue;  // a rank of the other turn
    const double half = 0.5 * kUnits * kNumel * 4;
    const double fetches = reshard ? 2 - 1.0 / kUnits : 1;
    // After the last step the first unit is fetched ahead.
    const double payload = half * (kSteps * (1 + fetches) + 1.0 / kUnits);
    for (int h = 0; h < 2; ++h) {
      const double first = h == 0 ? 2 * half : 0;  // the parameters, at the beginning
      const auto bytes = static_cast<double>(network_->bytes_sent(h));
      EXPECT_GT(bytes, 0.99 * payload + first) << h << reshard;
      EXPECT_LT(bytes, 1.08 * (payload + first)) << h << reshard;
    }
    network_.reset();
  }
}

// Between hosts a step sends as much as DistributedDataParallel's: each host sends the gradients of
// the others' parts once, and its own parts of the parameters once, however many ranks it has.
TEST_F(ZeroHosts, AStepSendsEachByteOnceAHost) {
  constexpr int64_t kNumel = 4 << 20;
  constexpr int kSteps = 4;
  for (const int per_host : {1, 2}) {
    make_hosts(2);
    run(
        testing::places(2, per_host),
        [] {
          Communicator comm =
              init({.backend = "hierarchical", .timeout = std::chrono::seconds(60)});
          const at::Tensor p = torch::full({kNumel}, 1.0).requires_grad_();
          ZeroOptimizer optimizer(comm, {{"p", p}}, SGDOptions(0.1), {.stage = 3});
          for (int step = 0; step < kSteps; ++step) {
            p.sum().backward();
            optimizer.step();
          }
          comm.barrier();
        },
        {}, std::to_string(per_host));
    if (!network_) continue;  // a rank of the other turn
    // At the beginning host 0 sends the parameters to host 1.
    const double payload = kSteps * 2 * 0.5 * kNumel * 4;
    for (int h = 0; h < 2; ++h) {
      const double first = h == 0 ? kNumel * 4 : 0;
      const auto bytes = static_cast<double>(network_->bytes_sent(h));
      EXPECT_GT(bytes, 0.99 * payload + first) << h;
      EXPECT_LT(bytes, 1.08 * (payload + first)) << h;
    }
    network_.reset();
  }
}

}  // namespace
}  // namespace lockstep::inline v0::zero_mp_test
