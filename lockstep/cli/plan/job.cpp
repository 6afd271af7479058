#include "lockstep/cli/plan/job.h"

#include <cmath>
#include <filesystem>

#include "lockstep/cli/usage.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/stopwatch.h"
#include "lockstep/core/text.h"
#include "lockstep/plan/calibration/calibration.h"
#include "lockstep/report/metrics_file.h"

namespace lockstep::inline v0::cli {
namespace {

constexpr int64_t kUsualSequence = 4096;

void require(bool given, const char* option, const std::string& what) {
  if (!given) throw UsageError(std::string(option) + " is required: " + what);
}

// A file or folder by that path, else a model by that name.
plan::ModelShape model_of(const std::string& text) {
  std::error_code ignored;
  const bool path = text.find('/') != std::string::npos || text.ends_with(".json") ||
                    std::filesystem::exists(text, ignored);
  return path ? plan::read_model_file(text) : plan::known_model(text);
}

// Throws for a name that is none, in the parser's own line under the option's name.
template <typename Parse>
auto parsed(const char* option, const Parse& parse) {
  try {
    return parse();
  } catch (const InvalidArgument& error) {
    throw UsageError(std::string(option) + ": " + error.what());
  }
}

plan::Layout job_of(const PlanFlags& flags, const plan::ModelShape& model,
                    const plan::Machine& machine) {
  plan::Layout job;
  job.global_batch = flags.global_batch;
  job.sequence = flags.sequence;
  if (job.sequence == 0)
    job.sequence = model.positions > 0 ? std::min(model.positions, kUsualSequence) : kUsualSequence;
  // Where bfloat16 is emulated it is slower.
  job.precision =
      machine.bfloat16 > machine.float32 ? plan::Precision::kBFloat16 : plan::Precision::kFloat32;
  if (!flags.precision.empty())
    job.precision = parsed("--precision", [&] { return plan::parse_precision(flags.precision); });
  job.masters = !flags.float32_parameters && job.precision != plan::Precision::kFloat32;
  job.optimizer = parsed("--optimizer", [&] { return plan::parse_optimizer(flags.optimizer); });
  return job;
}

plan::SearchRequest request_of(const PlanFlags& flags, const PlanParser& parser,
                               const plan::ModelShape& model, const plan::Machine& machine) {
  plan::SearchRequest request{.ranks = flags.ranks, .job = job_of(flags, model, machine)};
  request.top = flags.top;
  request.zero = flags.zero;
  if (!flags.schedule.empty()) {
    parsed("--schedule", [&] {  // throws for an unknown name
      return make_schedule(flags.schedule, {.stages = 2, .micro_batches = 2});
    });
    request.schedule = flags.schedule;
  }
  if (flags.size.chunks > 0) request.chunks = flags.size.chunks;
  if (flags.micro_batch > 0) request.micro_batch = flags.micro_batch;
  if (!flags.activations.empty())
    request.activations =
        parsed("--activations", [&] { return plan::parse_activations(flags.activations); });
  if (parser.given("--divided-rows")) request.divides_rows = true;
  return request;
}

plan::Layout layout_of(const PlanFlags& flags, const plan::SearchRequest& request) {
  plan::Layout layout = request.job;
  read_mesh(flags.mesh, flags.ranks, &layout);
  layout.zero = request.zero.value_or(layout.shard_ranks > 0 ? 3 : 0);
  layout.schedule = request.schedule.value_or("1f1b");
  const int usual = layout.schedule == "interleaved" || layout.schedule == "zb-v" ? 2 : 1;
  layout.chunks = request.chunks.value_or(layout.pipe > 1 ? usual : 1);
  layout.micro_batch = request.micro_batch.value_or(1);
  layout.activations = request.activations.value_or(plan::Activations::kKept);
  layout.divides_rows = request.divides_rows.value_or(false);
  return layout;
}

void require_flags(const PlanFlags& flags) {
  require(!flags.model.empty(), "--model", "a config.json, or a name that --list shows");
  require(!flags.hardware.empty(), "--hardware",
          "one of " + joined(plan::machine_names()) + ", or the file of --calibrate");
  require(flags.ranks > 0 || !flags.mesh.empty(), "--gpus", "how many ranks the job has");
  require(flags.global_batch > 0, "--global-batch", "how many sequences a step has");
}

void add_slow_links(const PlanFlags& flags, const plan::Candidate& shown, JobPlan* job) {
  for (const std::string& text : flags.slow_links) {
    Variation variation;
    const plan::Machine slow = with_slow_link(job->machine, text, &variation.what);
    variation.estimate = plan::estimate(job->model, shown.layout, slow, job->stack);
    if (!job->one) {
      plan::SearchResult found = plan::search(job->model, job->request, slow, job->stack);
      if (!found.best.empty() && found.best.front().layout != shown.layout)
        variation.fastest = std::move(found.best.front());
    }
    job->variations.push_back(std::move(variation));
  }
}

void add_straggler(const PlanFlags& flags, const plan::Candidate& shown, JobPlan* job) {
  if (flags.straggler == 1) return;
  const std::string times = std::to_string(std::lround(flags.straggler * 100));
  const size_t whole = times.size() - 2;
  job->variations.push_back({.what = "one rank computes " + times.substr(0, whole) + "." +
                                     times.substr(whole) + " times as long",
                             .estimate = plan::with_straggler(shown.estimate, flags.straggler)});
}

double checkpoint_stall(const std::string& text) {
  if (text.empty()) return 0;
  const std::string give = "; give seconds, 0 to 1e15, or the folder of a run";
  double seconds = 0;
  if (const auto typed = parse_double(text)) {
    seconds = *typed;
  } else {
    try {
      seconds = checkpoint_stall_of(text);
    } catch (const DataError& error) {
      throw UsageError("--checkpoint-stall: " + std::string(error.what()) + give);
    }
  }
  if (!(seconds >= 0 && seconds <= 1e15))
    throw UsageError("--checkpoint-stall is '" + text + "'" + give);
  return seconds;
}

void add_failures(const PlanFlags& flags, const PlanParser& parser, double stall,
                  const plan::Candidate& shown, JobPlan* job) {
  const bool fails = flags.rank_mtbf_hours > 0 || flags.host_mtbf_hours > 0;
  for (const char* option :
       {"--checkpoint-stall", "--checkpoint-interval", "--restart", "--in-place"})
    if (parser.given(option) && !fails)
      throw UsageError(std::string(option) +
                       " needs to know how often ranks fail; give --rank-mtbf or --host-mtbf");
  if (!fails) return;
  if (flags.in_place)
    for (const char* option : {"--checkpoint-stall", "--checkpoint-interval"})
      if (parser.given(option))
        throw UsageError(std::string(option) +
                         " is of jobs that go back to a checkpoint; leave it or --in-place out");
  if (!flags.in_place && !parser.given("--checkpoint-stall"))
    throw UsageError(
        "--checkpoint-stall is required with failures: the seconds that a checkpoint stops the "
        "training; or give --in-place");
  constexpr double kHour = 3600;
  const double mtbf =
      plan::job_mtbf({.rank = flags.rank_mtbf_hours * kHour, .host = flags.host_mtbf_hours * kHour},
                     shown.layout.ranks(), job->machine.ranks_per_host);
  job->in_place = flags.in_place;
  job->goodput =
      flags.in_place
          ? plan::goodput_in_place(mtbf, shown.estimate.step, flags.restart)
          : plan::goodput_with_checkpoints(
                mtbf,
                {.stall = stall, .restart = flags.restart, .interval = flags.checkpoint_interval});
}

void add_cost(const PlanFlags& flags, const PlanParser& parser, const plan::Candidate& shown,
              JobPlan* job) {
  if (parser.given("--price") && !parser.given("--tokens"))
    throw UsageError("--price needs the length of the training; give --tokens, too");
  if (!parser.given("--tokens")) return;
  job->tokens = flags.tokens;
  job->price = flags.price;
  const double share = job->goodput ? job->goodput->share : 1;
  if (share <= 0) return;  // it never ends
  job->cost = plan::cost_of(flags.tokens, shown.estimate.tokens_per_second, shown.layout.ranks(),
                            share, flags.price);
}

}  // namespace

const plan::Candidate* JobPlan::shown() const {
  if (one) return &*one;
  return found.best.empty() ? nullptr : &found.best.front();
}

double JobPlan::tokens_per_second(const plan::Candidate& candidate) const {
  return candidate.estimate.tokens_per_second * static_cast<double>(candidate.layout.ranks()) *
         (goodput ? goodput->share : 1);
}

JobPlan plan_job(const PlanFlags& flags, const PlanParser& parser) {
  require_flags(flags);
  JobPlan job;
  job.model = parsed("--model", [&] { return model_of(flags.model); });
  const plan::Calibration hardware =
      parsed("--hardware", [&] { return plan::find_calibration(flags.hardware); });
  job.machine = hardware.machine;
  // What was measured with the machine counts, unless another one is asked for.
  job.stack = hardware.stack && !parser.given("--stack")
                  ? *hardware.stack
                  : parsed("--stack", [&] { return plan::known_stack(flags.stack); });
  const double stall = checkpoint_stall(flags.checkpoint_stall);
  job.convention = parsed("--flops", [&] { return plan::flop_convention(flags.flops); });
  job.request = request_of(flags, parser, job.model, job.machine);
  if (!flags.mesh.empty()) {
    const plan::Layout layout = layout_of(flags, job.request);
    if (const std::string why = plan::refusal_of(layout, job.model); !why.empty())
      throw UsageError(why);
    job.one = plan::Candidate{.layout = layout,
                              .estimate = plan::estimate(job.model, layout, job.machine, job.stack),
                              .loses = ""};
    job.request.ranks = static_cast<int>(layout.ranks());
  } else {
    const Stopwatch watch(job.seconds);
    job.found = plan::search(job.model, job.request, job.machine, job.stack);
  }
  if (const plan::Candidate* shown = job.shown()) {
    const plan::Candidate copy = *shown;
    add_slow_links(flags, copy, &job);
    add_straggler(flags, copy, &job);
    add_failures(flags, parser, stall, copy, &job);
    add_cost(flags, parser, copy, &job);
  }
  return job;
}

}  // namespace lockstep::inline v0::cli
