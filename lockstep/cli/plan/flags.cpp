#include "lockstep/cli/plan/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>

#include "lockstep/cli/option_parsing.h"
#include "lockstep/cli/usage.h"
#include "lockstep/core/text.h"
#include "lockstep/plan/layout/layout.h"
#include "lockstep/plan/machine/stack.h"
#include "lockstep/plan/model/flop_convention.h"

namespace lockstep::inline v0::cli {
namespace {

constexpr const char* kJobGroup = "A training job";
constexpr const char* kLayoutGroup = "Its layout, if not all are searched";
constexpr const char* kWhatIfGroup = "What if";
constexpr const char* kScheduleGroup = "A pipeline's schedule alone";
constexpr const char* kMachineGroup = "This machine";
constexpr const char* kOutputGroup = "Output";

// Those that only a schedule has. Of both: --schedule, --chunks, --svg, --json, --help.
const std::vector<std::string>& schedule_options() {
  static const std::vector<std::string> options{"--stages", "--micro-batches", "--times",
                                                "--communication", "--measured"};
  return options;
}
const std::vector<std::string>& common_options() {
  static const std::vector<std::string> options{"--schedule", "--chunks", "--svg", "--json",
                                                "--help"};
  return options;
}

// Those of --calibrate, which measures and plans nothing.
const std::vector<std::string>& machine_options() {
  static const std::vector<std::string> options{"--calibrate", "--out", "--nproc", "--layers-of"};
  return options;
}

bool among(const std::vector<std::string>& all, const std::string& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

std::string convention_names() {
  std::vector<std::string> names;
  for (const plan::FlopConvention& convention : plan::flop_conventions())
    names.push_back(convention.name);
  return joined(names);
}

// CLI11 takes nan for a number of any range.
CLI::Validator finite_range(double least, double most) {
  return CLI::Validator(
      [least, most](std::string& text) -> std::string {
        const double value = std::strtod(text.c_str(), nullptr);
        if (value >= least && value <= most) return "";
        return "Value " + text + " not in range " + std::to_string(least) + " to " +
               std::to_string(most);
      },
      "");
}

}  // namespace

PlanParser::PlanParser(PlanFlags& flags)
    : app_(std::make_unique<CLI::App>(
          "Computes before a run what it will take: memory and time of a model on so many ranks "
          "of a machine, the best layouts and why the others lose; or what a pipeline's schedule "
          "alone will do.",
          "lockstep plan")) {
  app_->set_help_flag();
  app_->footer(
      "With --mesh: one layout. Without: the best of all, each of --zero, --schedule, --chunks, "
      "--micro-batch, --activations and --divided-rows narrowing the search.\n"
      "With --stages: a pipeline's schedule; without --schedule all of them, a line each. With "
      "--measured: what a pipeline has done, beside its plan.\n"
      "Exit code: 0, or 2 for a wrong flag; with --fits 1 where it does not fit.");
  add_example(*app_,
              {"lockstep plan --model llama3-8b --gpus 64 --hardware h100 --global-batch 512",
               "lockstep plan --schedule zb-h1 --stages 4 --micro-batches 8 --svg plan.svg"});
  add_job_options(flags);
  add_layout_options(flags);
  add_what_if_options(flags);
  add_schedule_options(flags);
  add_output_options(flags);
}

PlanParser::~PlanParser() = default;

void PlanParser::add_job_options(PlanFlags& flags) {
  const auto add = [&](const char* names, auto& value, const std::string& about) {
    return app_->add_option(names, value, about)->group(kJobGroup);
  };
  add("--model", flags.model,
      "(required for a job) Its config.json, a folder with one, or a name that --list shows")
      ->type_name("FILE|NAME");
  add("--gpus,--ranks", flags.ranks, "(required, but with --mesh) Ranks: one for each GPU or host")
      ->type_name("N")
      ->check(CLI::Range(1, 4'194'304));
  add("--hardware", flags.hardware,
      "(required for a job) A name that --list shows, or the file of --calibrate")
      ->type_name("NAME|FILE");
  add("--global-batch", flags.global_batch,
      "(required for a job) Sequences of a step, of all ranks together")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  add("--sequence", flags.sequence, "Tokens of a sequence [4096, or what the model can]")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
  add("--precision", flags.precision,
      "Of products [bfloat16 where the machine is faster in it, else float32]")
      ->type_name("float32|bfloat16|float8");
  app_->add_flag("--float32-parameters", flags.float32_parameters,
                 "Parameters are of 32 bits and are cast where they are used, as lockstep train "
                 "does; without it they are of 16 bits, and the optimizer has masters")
      ->group(kJobGroup);
  add("--optimizer", flags.optimizer, "[adamw]")->type_name("adamw|momentum|sgd");
  add("--stack", flags.stack,
      "The software, which decides what of the machine is reached: one of " +
          joined(plan::stack_names()) + " [the one in the file of --hardware, else lockstep]")
      ->type_name("NAME");
}

void PlanParser::add_layout_options(PlanFlags& flags) {
  const auto add = [&](const char* names, auto& value, const std::string& about) {
    return app_->add_option(names, value, about)->group(kLayoutGroup);
  };
  add("--mesh", flags.mesh,
      "One layout: ranks along data, pipe, context, expert and tensor, or along data and shard, "
      "the innermost last: data=8,pipe=4,tensor=2")
      ->type_name("AXES");
  add("--zero", flags.zero, "Its stage of ZeRO, 0 to 3")
      ->type_name("STAGE")
      ->check(CLI::Range(0, 3));
  add("--micro-batch", flags.micro_batch, "Sequences that a rank computes at once")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
  add("--activations", flags.activations,
      "What a forward leaves for its backward: all, all but attention's scores, every second "
      "product's output, a layer's input")
      ->type_name("kept|selective|alternate|recomputed");
  add("--schedule", flags.schedule, "A pipeline's: one of " + joined(schedule_names()))
      ->type_name("NAME");
  add("--chunks", flags.size.chunks,
      "Chunks of the model a stage has; interleaved takes any number")
      ->type_name("V")
      ->check(CLI::Range(1, 26));
  app_->add_flag("--divided-rows", flags.divided_rows,
                 "Sequence parallelism: what tensor does not divide is divided by rows")
      ->group(kLayoutGroup);
}

void PlanParser::add_what_if_options(PlanFlags& flags) {
  const auto add = [&](const char* names, auto& value, const std::string& about) {
    return app_->add_option(names, value, about)->group(kWhatIfGroup);
  };
  constexpr double kMost = 1e15;
  add("--slow-link", flags.slow_links,
      "The links inside of hosts or between them are slower: between=0.5 of their bandwidth, or "
      "inside=40GB/s; may be given twice")
      ->type_name("PLACE=SPEED")
      ->take_all();
  add("--straggler", flags.straggler, "One rank computes so many times as long")
      ->type_name("FACTOR")
      ->check(finite_range(1, 1e6));
  add("--rank-mtbf", flags.rank_mtbf_hours, "Hours between two failures of one rank")
      ->type_name("HOURS")
      ->check(finite_range(0, kMost));
  add("--host-mtbf", flags.host_mtbf_hours, "The same of one host, in addition")
      ->type_name("HOURS")
      ->check(finite_range(0, kMost));
  add("--checkpoint-stall", flags.checkpoint_stall,
      "Seconds that a checkpoint stops the training, or the folder of a run, whose metrics.jsonl "
      "has them")
      ->type_name("SECONDS|RUN");
  add("--checkpoint-interval", flags.checkpoint_interval,
      "Seconds of training between checkpoints [what loses least]")
      ->type_name("SECONDS")
      ->check(finite_range(0, kMost));
  add("--restart", flags.restart, "Seconds from a failure to the first new step [0]")
      ->type_name("SECONDS")
      ->check(finite_range(0, kMost));
  app_->add_flag("--in-place", flags.in_place,
                 "The other ranks go on where one fails (lockstep run --on-failure replace)")
      ->group(kWhatIfGroup);
  add("--price", flags.price, "Of one rank for an hour, in any currency")
      ->type_name("PRICE")
      ->check(finite_range(0, kMost));
  add("--tokens", flags.tokens, "The training's: how long it takes and costs")
      ->type_name("N")
      ->check(finite_range(1, 1e18));
}

void PlanParser::add_schedule_options(PlanFlags& flags) {
  const auto add = [&](const char* names, auto& value, const std::string& about) {
    return app_->add_option(names, value, about)->group(kScheduleGroup);
  };
  add("--stages", flags.size.stages, "(required, but with --measured) Ranks along the pipeline")
      ->type_name("P")
      ->check(CLI::Range(1, 512));
  add("--micro-batches", flags.size.micro_batches,
      "(required, but with --measured) Micro-batches of a step")
      ->type_name("M")
      ->check(CLI::Range(1, 4096));
  add("--times", flags.times,
      "What a stage takes for a micro-batch: forward, backward of inputs, backward of weights; in "
      "any unit [1,1,1]")
      ->type_name("F,B,W");
  add("--communication", flags.communication, "What a message takes from one stage to another [0]")
      ->type_name("TIME")
      ->check(CLI::Range(0.0, 1e12));
  auto* const measured =
      add("--measured", flags.measured,
          "What a pipeline has written of a step (pipeline_json()); drawn below what was planned");
  measured->type_name("FILE");
  for (const char* other :
       {"--schedule", "--stages", "--micro-batches", "--chunks", "--times", "--communication"})
    measured->excludes(app_->get_option(other));
}

void PlanParser::add_output_options(PlanFlags& flags) {
  app_->add_flag("--calibrate", flags.calibrate,
                 "Measures this machine's products, memory and links, for --hardware")
      ->group(kMachineGroup);
  app_->add_option("--out", flags.out, "With --calibrate: the machine's file [machine.json]")
      ->type_name("FILE")
      ->group(kMachineGroup);
  app_->add_option("--nproc", flags.calibrated_ranks,
                   "With --calibrate: ranks whose links are measured [2]")
      ->type_name("N")
      ->check(CLI::Range(2, 1024))
      ->group(kMachineGroup);
  app_->add_option("--layers-of", flags.layers_of,
                   "With --calibrate: language models whose layers are measured, each tiny, mini, "
                   "small or a folder with a config.json, and :TOKENS of a sequence, or none "
                   "[tiny,mini]")
      ->type_name("MODELS")
      ->group(kMachineGroup);
  app_->add_flag("--fits", flags.fits,
                 "A job: say in one line whether it fits into memory, and exit with 0 or 1")
      ->group(kOutputGroup);
  app_->add_option("--top", flags.top, "A search: how many layouts are shown [10]")
      ->type_name("N")
      ->check(CLI::Range(1, 1000))
      ->group(kOutputGroup);
  app_->add_option("--flops", flags.flops,
                   "How FLOP/s are counted: one of " + convention_names() + " [6n+attention]")
      ->type_name("CONVENTION")
      ->group(kOutputGroup);
  app_->add_flag("--list", flags.list, "The models, machines, stacks and conventions by name")
      ->group(kOutputGroup);
  app_->add_option("--svg", flags.svg, "Draw it there")->type_name("FILE")->group(kOutputGroup);
  app_->add_option("--json", flags.json, "Write it there")->type_name("FILE")->group(kOutputGroup);
  app_->add_flag("--help,-h", flags.help, "This text")->group(kOutputGroup);
}

bool PlanParser::of_job() const {
  return !first_given([](const std::string& option) {
            return !among(schedule_options(), option) && !among(machine_options(), option) &&
                   !among(common_options(), option);
          }).empty();
}

std::string PlanParser::first_given(bool (*which)(const std::string& option)) const {
  const auto found = std::find_if(given_.begin(), given_.end(), which);
  return found == given_.end() ? "" : *found;
}

void PlanParser::parse(const std::vector<std::string>& words) {
  parse_options(*app_, words);
  for (const CLI::Option* option : app_->get_options())
    if (option->count() > 0) given_.insert("--" + option->get_lnames().front());
  const std::string of_machine =
      first_given([](const std::string& option) { return among(machine_options(), option); });
  const std::string other =
      first_given([](const std::string& option) { return !among(machine_options(), option); });
  if (!of_machine.empty() && !given("--calibrate"))
    throw UsageError(of_machine + " is of --calibrate; give that, or leave it out");
  if (!of_machine.empty() && !other.empty())
    throw UsageError("--calibrate measures and plans nothing; leave out " + other);
  const std::string of_schedule =
      first_given([](const std::string& option) { return among(schedule_options(), option); });
  if (of_schedule.empty() || !of_job()) return;
  throw UsageError(of_schedule + " is of a pipeline's schedule alone, and " +
                   first_given([](const std::string& option) {
                     return !among(schedule_options(), option) && !among(common_options(), option);
                   }) +
                   " of a training job; leave out one of them; see lockstep plan --help");
}

std::string PlanParser::help() const {
  return help_of(*app_, help_width());
}

OptionTable PlanParser::table() const {
  return table_of(*app_);
}

}  // namespace lockstep::inline v0::cli
