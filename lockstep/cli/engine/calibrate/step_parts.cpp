#include "lockstep/cli/engine/calibrate/step_parts.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <numeric>

#include "lockstep/bench/load.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/named_file.h"
#include "lockstep/core/quantile.h"
#include "lockstep/core/text.h"
#include "lockstep/plan/pipeline_timing.h"
#include "lockstep/products/parallel_lm.h"
#include "lockstep/report/progress_bar.h"
#include "lockstep/report/terminal.h"

namespace lockstep::inline v0::engine {
namespace {

constexpr int64_t kUsualTokens = 128, kUsualWords = 2048;

// A preset, or a folder with a config.json, by its name.
LmConfig config_of(const std::string& name) {
  const auto& presets = lm_preset_names();
  if (std::find(presets.begin(), presets.end(), name) != presets.end()) {
    LmConfig preset = lm_preset(name);
    preset.vocab_size = kUsualWords;
    preset.bos_token_id = {};
    preset.eos_token_ids = {};
    return preset;
  }
  if (!std::filesystem::exists(name)) (void)lm_preset(name);  // throws with the names
  const std::filesystem::path place = name;
  const std::string file =
      (std::filesystem::is_directory(place) ? place / "config.json" : place).string();
  return lm_config_from_json(read_named_file(file), file);
}

// The seconds of a step's parts on this rank.
struct Timed {
  double forward = 0, backward = 0, update = 0;
  double late = 0;  // of the slowest rank, for all of them
  double all() const { return forward + backward + update; }
};

class PartMeter {
 public:
  PartMeter(const StepPartsOptions& options, Communicator comm)
      : options_(options),
        comm_(std::move(comm)),
        alone_(comm_.split(comm_.rank()).value()),
        shares_processors_(options.processors > 0 && comm_.size() > options.processors),
        bar_({.terminal = find_terminal(STDERR_FILENO, process_env())}) {}

  std::vector<plan::PartSample> measure() {
    std::vector<plan::PartSample> samples;
    for (const MeasuredModel& model : options_.models) {
      for (const LmConfig& config : divided_configs(model.config)) {
        for (int64_t batch = 1; batch <= options_.largest_batch; batch *= 2) {
          shown(model.name + ", inner width " + std::to_string(config.intermediate_size) + ", " +
                std::to_string(batch) + " x " + std::to_string(model.tokens));
          const auto [sample, seconds] = sample_of(config, batch, model.tokens);
          samples.push_back(sample);
          if (seconds > kLongest) break;
        }
        ++done_;
      }
    }
    if (comm_.rank() == 0)
      bar_.finish("measured layers of " + std::to_string(options_.models.size()) +
                  (options_.models.size() == 1 ? " model" : " models"));
    return samples;
  }

 private:
  static constexpr double kLongest = 1.5;    // of a step; the next has twice the work
  static constexpr int kFew = 1, kMore = 3;  // layers

  void shown(const std::string& what) {
    int64_t all = 0;
    for (const MeasuredModel& model : options_.models)
      all += static_cast<int64_t>(divided_configs(model.config).size());
    if (comm_.rank() == 0) bar_.update({.label = what, .done = done_, .total = all});
  }

  // What the layers differ by is a layer; what is left of the smaller model are the ends. A part that
  // is lost in the noise is left out.
  std::pair<plan::PartSample, double> sample_of(const LmConfig& config, int64_t batch,
                                                int64_t tokens) {
    LmConfig fitting = config;
    fitting.max_position_embeddings = std::max(config.max_position_embeddings, tokens);
    LmConfig few = fitting, more = fitting;
    few.num_hidden_layers = kFew;
    more.num_hidden_layers = kMore;
    ParallelLm smaller = model_of(few), larger = model_of(more);
    const at::Tensor words = at::randint(config.vocab_size, {batch, tokens + 1}, at::kLong);
    const LmRowBatch rows{.ids = words.narrow(1, 0, tokens).contiguous(),
                          .targets = words.narrow(1, 1, tokens).contiguous()};
    const auto [of_few, of_more] = timed(smaller, larger, rows);
    const auto layer = [&, one = of_few, other = of_more](double Timed::* part) {
      return std::max(0.0, (other.*part - one.*part) / (kMore - kFew));
    };
    plan::PartSample sample{.model = plan::read_model_shape(to_json(more), "the measured model"),
                            .batch = batch,
                            .sequence = tokens};
    sample.layer_forward = layer(&Timed::forward);
    sample.layer_backward = layer(&Timed::backward);
    sample.ends_forward = std::max(0.0, of_few.forward - kFew * sample.layer_forward);
    sample.ends_backward = std::max(0.0, of_few.backward - kFew * sample.layer_backward);
    sample.update = of_more.update;
    sample.step = of_more.all();
    sample.late = of_more.late;
    return {sample, of_more.all()};
  }

  ParallelLm model_of(const LmConfig& config) {
    torch::manual_seed(7);
    ParallelLm model(config, alone_, parse_parallelism("data=1"));
    model.make_optimizer(torch::optim::AdamWOptions(1e-3));
    return model;
  }

  // The two models' steps, which take turns.
  std::pair<Timed, Timed> timed(ParallelLm& smaller, ParallelLm& larger, const LmRowBatch& rows) {
    Timed once;
    for (int i = 0; i < 2; ++i) {  // the first allocates
      step_of(smaller, rows);
      once = step_of(larger, rows);
    }
    constexpr double kLeast = 7, kMost = 60;
    const auto steps = static_cast<int64_t>(
        std::clamp(options_.sample_s / std::max(mean(once.all()), 1e-6), kLeast, kMost));
    Samples of_smaller, of_larger;
    const auto take_turns = [&](bool together) {
      of_smaller = of_larger = {};
      for (int64_t i = 0; i < steps; ++i) {
        if (together) comm_.barrier();  // all ranks compute at once
        of_smaller.add(step_of(smaller, rows));
        if (together) comm_.barrier();
        of_larger.add(step_of(larger, rows));
      }
    };
    take_turns(true);
    const double late = late_of(of_larger);
    if (shares_processors_) take_turns(false);
    return {typical(of_smaller, late), typical(of_larger, late)};
  }

  // Of a model's steps.
  struct Samples {
    std::vector<double> forward, backward, update;
    void add(const Timed& one) {
      forward.push_back(one.forward);
      backward.push_back(one.backward);
      update.push_back(one.update);
    }
  };
  // The medians. Where ranks share processors, the means of steps that no rank waits before: a part that is shorter than the
  // system's time slices mostly runs without being interrupted, and the last rank of those that wait has a processor for
  // itself.
  Timed typical(const Samples& samples, double late) {
    const auto of_rank = [&](const std::vector<double>& values) {
      return mean(shares_processors_ ? std::accumulate(values.begin(), values.end(), 0.0) /
                                           static_cast<double>(values.size())
                                     : median(values));
    };
    return {.forward = of_rank(samples.forward),
            .backward = of_rank(samples.backward),
            .update = of_rank(samples.update),
            .late = late};
  }

  // How much longer the slowest rank took than all in the mean, over steps; without the tenth of them that was
  // disturbed most.
  double late_of(const Samples& samples) {
    std::vector<double> all(samples.forward.size());
    for (size_t i = 0; i < all.size(); ++i)
      all[i] = samples.forward[i] + samples.backward[i] + samples.update[i];
    const at::Tensor slowest = at::tensor(all, at::kDouble), sum = slowest.clone();
    comm_.all_reduce(slowest, ReduceOp::kMax);
    comm_.all_reduce(sum);
    const at::Tensor late = std::get<0>((slowest - sum / comm_.size()).sort());
    const int64_t kept = std::max<int64_t>(1, late.numel() * 9 / 10);
    return late.narrow(0, 0, kept).mean().item<double>();
  }

  static Timed step_of(ParallelLm& model, const LmRowBatch& rows) {
    using Clock = std::chrono::steady_clock;
    const auto seconds = [](Clock::time_point from, Clock::time_point to) {
      return std::chrono::duration<double>(to - from).count();
    };
    const auto start = Clock::now();
    model.step(rows);
    const auto computed = Clock::now();
    model.update({});
    Timed found{.update = seconds(computed, Clock::now())};
    for (const TimedAction& action : model.pipeline().executed())
      if (action.action.work == PipelineWork::kForward) found.forward += action.end - action.start;
    found.backward = seconds(start, computed) - found.forward;
    return found;
  }

  double mean(double value) {
    const at::Tensor sum = at::empty({1}, at::kDouble);
    sum.fill_(value);
    comm_.all_reduce(sum);
    return sum.item<double>() / comm_.size();
  }

  const StepPartsOptions& options_;
  Communicator comm_, alone_;
  bool shares_processors_;
  ProgressBar bar_;
  int64_t done_ = 0;
};

}  // namespace

std::vector<MeasuredModel> parse_measured_models(const std::string& text) {
  std::vector<MeasuredModel> models;
  if (text == "none") return models;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t colon = item.rfind(':');
    MeasuredModel model{.name = item.substr(0, colon), .config = {}, .tokens = kUsualTokens};
    if (colon != std::string::npos) {
      const std::string tokens = item.substr(colon + 1);
      const auto read = std::from_chars(tokens.data(), tokens.data() + tokens.size(), model.tokens);
      if (read.ec != std::errc() || read.ptr != tokens.data() + tokens.size() || model.tokens < 2 ||
          model.tokens > 65536)
        throw InvalidArgument("--layers-of: '" + item + "' has " + shell_word(tokens) +
                              " tokens; give MODEL:TOKENS with 2 to 65536, such as tiny:128");
    }
    try {
      model.config = config_of(model.name);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument("--layers-of: " + std::string(error.what()));
    }
    models.push_back(std::move(model));
  }
  return models;
}

std::vector<LmConfig> divided_configs(const LmConfig& config) {
  std::vector<LmConfig> configs;
  for (const int64_t parts : {1, 2, 4}) {
    LmConfig part = config;
    part.num_key_value_heads = config.key_value_heads();
    part.head_dim = config.head_width();
    if (parts > 1 && config.has_experts()) break;
    bool divides = true;
    for (int64_t LmConfig::* size : {&LmConfig::num_attention_heads, &LmConfig::num_key_value_heads,
                                     &LmConfig::intermediate_size, &LmConfig::vocab_size}) {
      divides = divides && part.*size % parts == 0;
      part.*size /= parts;
    }
    if (divides) configs.push_back(part);
  }
  return configs;
}

std::vector<plan::PartSample> measure_step_parts(const StepPartsOptions& options, double* others) {
  if (options.models.empty()) return {};
  at::set_num_threads(1);
  Communicator comm = init({});
  const bench::LoadMeter load;
  std::vector<plan::PartSample> samples = PartMeter(options, comm).measure();
  *others = std::max(*others, load.others(comm));
  return samples;
}

}  // namespace lockstep::inline v0::engine
