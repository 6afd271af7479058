#include "lockstep/cli/engine/compare/parallelism_rank.h"

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>

#include "lockstep/cli/engine/command_line.h"
#include "lockstep/comm/init.h"
#include "lockstep/comm/objects.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/memory_use.h"
#include "lockstep/core/quantile.h"
#include "lockstep/flat/live_bytes.h"
#include "lockstep/plan/pipeline_timing.h"
#include "lockstep/products/parallel_lm.h"

namespace lockstep::inline v0::engine {
namespace {

constexpr int kWarmUps = 2;
constexpr uint64_t kSeed = 7;

// The bytes that a ring's rank sends for payloads (CommunicatorStats).
double sent_of(const CommunicatorStats& stats, double ranks) {
  const double round = (ranks - 1) / ranks;
  const auto bytes = [&](Op op) { return static_cast<double>(stats.of(op).bytes); };
  return round * (2 * bytes(Op::kAllReduce) + bytes(Op::kAllGather) + bytes(Op::kReduceScatter) +
                  bytes(Op::kAllToAll) + bytes(Op::kBroadcast) + bytes(Op::kReduce) +
                  bytes(Op::kGather) + bytes(Op::kScatter)) +
         bytes(Op::kSend);
}

// The sums for every set of axes with more than one rank, and for gradients.
std::map<std::string, double> sent_by_axes(const ParallelLm& model) {
  const Mesh& mesh = model.mesh();
  std::vector<std::string> axes;
  for (const MeshAxis& axis : mesh.layout().axes())
    if (axis.size > 1) axes.push_back(axis.name);
  std::map<std::string, double> sent;
  for (size_t set = 1; set < (size_t{1} << axes.size()); ++set) {
    std::vector<std::string> names;
    std::string label;
    for (size_t i = 0; i < axes.size(); ++i) {
      if ((set >> i & 1) == 0) continue;
      names.push_back(axes[i]);
      label += (label.empty() ? "" : "+") + axes[i];
    }
    const Communicator& group = mesh.over(names);
    sent[label] = sent_of(group.stats(), group.size());
  }
  for (const DividedParameters::Averaging& group : model.divided().averaging())
    sent["gradients"] += sent_of(group.stats, group.ranks);
  return sent;
}

// Every way has the same batch, of which each row of ranks takes its part.
LmRowBatch batch_of_row(const DividedSettings& settings, int row, int rows) {
  torch::manual_seed(kSeed + 1);
  const at::Tensor tokens =
      torch::randint(settings.vocabulary, {settings.batch, settings.length + 1}, torch::kLong);
  const int64_t share = settings.batch / rows;
  const at::Tensor own = tokens.narrow(0, row * share, share);
  return {.ids = own.narrow(1, 0, settings.length).contiguous(),
          .targets = own.narrow(1, 1, settings.length).contiguous()};
}

class DividedTraining {
 public:
  DividedTraining(const DividedWay& way, const DividedSettings& settings, Communicator comm)
      : comm_(std::move(comm)), model_(made(way, settings, comm_)), zero_(way.how.zero) {
    model_.make_optimizer(torch::optim::AdamWOptions(1e-3));
    Communicator rows = model_.rows();
    batch_ = batch_of_row(settings, rows.rank(), rows.size());
  }

  DividedRank measure(int64_t steps, DividedRecord& record) {
    DividedRank mine;
    for (int i = 0; i < kWarmUps; ++i) {
      const double loss = mean(model_.step(batch_));
      if (i == 0) record.first_loss = loss;
      model_.update({});
    }
    count_memory(mine);
    const auto before = sent_by_axes(model_);
    std::vector<double> times;
    double loss = 0;
    for (int64_t i = 0; i < steps; ++i) {
      comm_.barrier();
      const auto start = std::chrono::steady_clock::now();
      loss = model_.step(batch_);
      model_.update({});
      times.push_back(
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
              .count());
    }
    for (const auto& [axes, bytes] : sent_by_axes(model_))
      mine.sent[axes] = (bytes - before.at(axes)) / static_cast<double>(steps);
    record.last_loss = mean(loss);
    mine.step_ms = quantile(times, 0.5);
    for (const TimedAction& action : model_.pipeline().executed()) {
      mine.span = std::max(mine.span, action.end);
      mine.busy += action.end - action.start;
    }
    mine.pss = proportional_memory_bytes();
    return mine;
  }

 private:
  static ParallelLm made(const DividedWay& way, const DividedSettings& settings,
                         const Communicator& comm) {
    torch::manual_seed(kSeed);
    return {divided_model(settings, way.experts), comm, way.how};
  }

  // Existing gradients are added to in place, so the memory that a second backward takes beside
  // them is the activations. ZeRO from stage 2 on removes them during backward, and has one
  // backward for an update.
  void count_memory(DividedRank& mine) {
    const bool twice = zero_ < 2;
    if (twice) model_.step(batch_);
    {
      const LiveBytes live;
      model_.step(batch_);
      mine.activations = live.most();
    }
    const DividedParameters::Memory memory = model_.divided().memory();
    if (!twice) mine.activations = std::max<int64_t>(0, mine.activations - memory.gradients);
    mine.parameters = memory.parameters;
    mine.gradients = memory.gradients;
    mine.state = memory.state;
    mine.buffers = memory.buffers;
    if (twice) model_.scale_gradients(0.5);  // the step is then like the others
    model_.update({});
  }

  double mean(double loss) {
    Communicator rows = model_.rows();
    const at::Tensor all = torch::full({1}, loss, torch::kDouble);
    rows.all_reduce(all, ReduceOp::kAvg);
    return all.item<double>();
  }

  Communicator comm_;
  ParallelLm model_;
  int zero_;
  LmRowBatch batch_;
};

}  // namespace

double DividedRank::sent_in_all() const {
  return std::accumulate(sent.begin(), sent.end(), 0.0,
                         [](double sum, const auto& one) { return sum + one.second; });
}

int64_t DividedRank::bytes_in_all() const {
  return parameters + gradients + state + buffers + activations;
}

DividedRecord parse_divided_record(const std::string& text, const std::string& source) {
  try {
    const DividedRecord record = nlohmann::json::parse(text);
    if (record.by_rank.empty()) throw DataError(source + " has no rank");
    return record;
  } catch (const nlohmann::json::exception& error) {
    throw DataError(source + ": " + error.what());
  }
}

void run_divided_rank(const DividedWay& way, const DividedSettings& settings,
                      const std::string& file) {
  Communicator comm = init({});
  if (comm.size() != settings.nproc)
    throw InvalidArgument("the job has " + std::to_string(comm.size()) + " ranks, and --nproc is " +
                          std::to_string(settings.nproc));
  DividedRecord record;
  DividedTraining training(way, settings, comm);
  const nlohmann::json mine = training.measure(settings.steps, record);
  for (const DividedRank rank : all_gather_object(comm, mine)) record.by_rank.push_back(rank);
  if (comm.rank() == 0) write_json(file, nlohmann::json(record));
  comm.barrier();  // no rank leaves while others still measure
}

}  // namespace lockstep::inline v0::engine
