// The parts "steps" and "shared-device".
#include "lockstep/gpu_check/steps.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "lockstep/bench/turns.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/quantile.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/device/current.h"
#include "lockstep/device/graph.h"
#include "lockstep/device/memory.h"
#include "lockstep/gpu_check/ceilings.h"
#include "lockstep/gpu_check/contest.h"
#include "lockstep/gpu_check/rank_jobs.h"
#include "lockstep/gpu_check/ranks.h"
#include "lockstep/gpu_check/runner.h"
#include "lockstep/gpu_check/scripts.h"

namespace lockstep::inline v0::gpu_check {
namespace {

using nlohmann::json;

// A process that has turns, and what it is asked to do in one.
class Contender {
 public:
  Contender(std::string name, std::string way, std::shared_ptr<bench::TurnGiver> turns,
            std::shared_ptr<Subprocess> process)
      : name_(std::move(name)),
        way_(std::move(way)),
        turns_(std::move(turns)),
        process_(std::move(process)) {}

  const std::string& name() const { return name_; }
  // Throws Error with what the process says; Timeout and LaunchError where it says nothing.
  json take(const StepCase& one, int steps, Deadline deadline) const {
    const json task = {{"case", one}, {"way", way_}, {"steps", steps}};
    const json answer = json::parse(turns_->ask(0, task.dump(), *process_, deadline));
    if (answer.contains("error")) throw Error(answer.at("error").get<std::string>());
    return answer;
  }

 private:
  std::string name_, way_;
  std::shared_ptr<bench::TurnGiver> turns_;
  std::shared_ptr<Subprocess> process_;
};

std::shared_ptr<Subprocess> start(std::vector<std::string> command) {
  SubprocessOptions options;
  options.command = std::move(command);
  options.own_session = false;  // it ends with this process's group
  return std::make_shared<Subprocess>(options);
}

struct Timed {
  const Contender* contender;
  int steps = 1;  // of a turn
  std::vector<double> ms = {};
  double peak_mb = 0;
  std::string wrong = {};
};

// In rounds: each has a turn, and then the next round. The first `ours` contenders must not fail.
void time_case(const StepCase& one, const std::vector<Contender>& contenders, size_t ours,
               bool small, double ceiling, Deadline deadline, const Rows& rows) {
  const double turn_ms = small ? 1 : 300;
  const int rounds = small ? 1 : 5;
  std::vector<Timed> all;
  for (const Contender& contender : contenders) all.push_back({.contender = &contender});
  const auto turn = [&](Timed& timed, int steps) -> std::optional<double> {
    if (!timed.wrong.empty()) return {};
    try {
      const json answer = timed.contender->take(one, steps, deadline);
      timed.peak_mb = answer.at("peak_mb");
      return answer.at("ms").get<double>();
    } catch (const std::exception& error) {
      timed.wrong = error.what();
      return {};
    }
  };
  // What is compiled, chosen and allocated at first use; then how many steps a turn has.
  if (!small) {
    for (Timed& timed : all) (void)turn(timed, 4);
  }
  for (Timed& timed : all) {
    if (const auto ms = turn(timed, small ? 1 : 3))
      timed.steps = std::clamp(static_cast<int>(turn_ms / *ms), 1, 200);
  }
  for (int round = 0; round < rounds; ++round) {
    for (Timed& timed : all) {
      if (const auto ms = turn(timed, timed.steps)) timed.ms.push_back(*ms);
    }
  }
  for (const Timed& timed : all) {
    const std::string check = one.name + ", " + timed.contender->name();
    if (!timed.wrong.empty() || timed.ms.empty()) {
      const bool must = &timed < all.data() + ours;
      rows.add(check, must ? Outcome::kFailed : Outcome::kSkipped, timed.wrong);
      continue;
    }
    const double ms = quantile(timed.ms, 0.5);
    const double each_second = static_cast<double>(one.samples_or_tokens()) / ms * 1e3;
    const double share = one.half && ceiling > 0 ? flop_of_step(one) / (ms * 1e-3) / ceiling : 0;
    const char* what = one.has_tokens() ? " tokens/s" : " samples/s";
    std::string text = three_digits(ms) + " ms a step, " + three_digits(each_second) + what;
    if (share > 0) text += ", " + three_digits(share * 100) + " % of the products' ceiling";
    text += ", " + three_digits(timed.peak_mb) + " MB at most";
    rows.ok(check, text,
            {{"ms_per_step", ms},
             {one.has_tokens() ? "tokens_per_s" : "samples_per_s", each_second},
             {"share_of_ceiling", share},
             {"peak_mb", timed.peak_mb}});
  }
}

}  // namespace

int run_contest(const Options& options) {
  bench::TurnTaker turns(options.contest, 0);
  const c10::Device device = device::current(c10::kCUDA);
  std::unique_ptr<Contest> contest;
  json held;
  for (std::string line; !(line = turns.take_task()).empty();) {
    const json task = json::parse(line);
    json answer;
    try {
      if (held != task.at("case")) {
        contest.reset();
        held = nullptr;
        device::reset_peak_memory(device);
        contest = make_contest(task.at("case").get<StepCase>(), device, nullptr,
                               task.at("way") == "graph" ? Way::kGraph : Way::kEager);
        held = task.at("case");
      }
      answer["ms"] = ms_per_step(*contest, device, task.at("steps"));
      answer["peak_mb"] = static_cast<double>(device::memory_use(device)->peak) / 1e6;
    } catch (const std::exception& error) {
      answer = {{"error", last_words(error.what(), 3)}};
    }
    turns.answer(answer.dump(-1, ' ', false, json::error_handler_t::replace));
  }
  return 0;
}

void look_at_steps(const Options& options, const Rows& rows) {
  const Deadline deadline = Deadline::seconds(options.seconds - 3);
  const auto own = std::make_shared<bench::TurnGiver>(1),
             graph = std::make_shared<bench::TurnGiver>(1),
             python = std::make_shared<bench::TurnGiver>(1);
  const auto start_own = [&](const bench::TurnGiver& turns) {
    std::vector<std::string> command =
        options.arguments({"--part", "steps", "--contest", turns.address()});
    command.insert(command.begin(), own_program());
    return start(command);
  };
  const std::string why_no_graphs = device::why_no_graphs(device::current(c10::kCUDA));
  // On a card it was packed without them.
  rows.add("graphs",
           why_no_graphs.empty()  ? Outcome::kOk
           : devices_are_played() ? Outcome::kSkipped
                                  : Outcome::kFailed,
           why_no_graphs);
  std::vector<Contender> contenders{{"Lockstep", "eager", own, start_own(*own)}};
  contenders.emplace_back("Lockstep as a CUDA graph", "graph", graph, start_own(*graph));
  const size_t ours = why_no_graphs.empty() ? 2 : 1;
  try {
    const auto process = start({options.python, "-c", kContestScript, python->address()});
    contenders.emplace_back("PyTorch", "eager", python, process);
    contenders.emplace_back("PyTorch as a CUDA graph", "graph", python, process);
  } catch (const LaunchError& error) {
    rows.skipped("PyTorch", error.what());
  }
  double ceiling = 0;
  if (!devices_are_played() && !options.small)
    ceiling = matmul_ceiling(device::current(c10::kCUDA), c10::kBFloat16, 8192);
  for (const StepCase& one : step_cases(options.small)) {
    if (deadline.expired()) {
      rows.skipped(one.name, "no time was left");
      continue;
    }
    time_case(one, contenders, ours, options.small, ceiling, deadline, rows);
  }
  own->end();
  graph->end();
}

// The ranks' batches are halves, or as many parts as there are ranks, of what rank 0 then takes alone.
void share_device(Communicator& comm, const Options& options, const Rows& rows) {
  const std::vector<StepCase> cases = step_cases(options.small);
  const auto first_of = [&](const std::string& kind) {
    return *std::find_if(cases.begin(), cases.end(),
                         [&](const StepCase& one) { return one.kind == kind; });
  };
  for (const char* kind : {"simple-cnn", "bert"}) {
    StepCase whole = first_of(kind), part = whole;
    part.batch = std::max<int64_t>(1, part.batch / comm.size());
    whole.batch = part.batch * comm.size();
    const int steps = options.small ? 2 : 30, rounds = options.small ? 1 : 3;
    std::vector<double> together, alone;
    double peak_mb = 0;
    {
      device::reset_peak_memory(comm.device());
      const auto contest = make_contest(part, comm.device(), &comm);
      (void)ms_per_step(*contest, comm.device(), options.small ? 1 : 5);
      for (int i = 0; i < rounds; ++i) {
        comm.barrier();
        together.push_back(ms_per_step(*contest, comm.device(), steps));
      }
      peak_mb = static_cast<double>(device::memory_use(comm.device())->peak) / 1e6;
    }
    if (comm.rank() == 0) {
      const auto contest = make_contest(whole, comm.device(), nullptr);
      (void)ms_per_step(*contest, comm.device(), options.small ? 1 : 5);
      for (int i = 0; i < rounds; ++i) alone.push_back(ms_per_step(*contest, comm.device(), steps));
      const double ms = quantile(together, 0.5), one = quantile(alone, 0.5);
      rows.ok(
          whole.name,
          three_digits(ms) + " ms a step; one rank with the whole batch " + three_digits(one) +
              " ms; " + three_digits(peak_mb) + " MB a rank",
          {{"ms_per_step", ms}, {"ms_alone", one}, {"over", ms / one - 1}, {"peak_mb", peak_mb}});
    }
    comm.barrier();
  }
}

void look_at_shared_device(const Options& options, const Rows& rows) {
  for (JobSpec spec : specs(options, "share-device")) {
    if (spec.engine == "nccl" && spec.size == 1) continue;
    on_ranks(options, rows, spec);
  }
}

}  // namespace lockstep::inline v0::gpu_check
