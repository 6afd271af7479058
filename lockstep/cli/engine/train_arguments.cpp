#include "lockstep/cli/engine/train_arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>
#include <filesystem>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/core/errors.h"
#include "lockstep/data/digits.h"
#include "lockstep/data/mnist.h"
#include "lockstep/train/run_folder.h"

namespace lockstep::engine {
namespace fs = std::filesystem;
namespace {

constexpr const char* kDigits = "digits";

TrainConfig apply(TrainConfig config, const TrainArguments& arguments) {
  if (!arguments.config_file.empty()) {
    config = train_config_from_json(read_text_file(arguments.config_file), arguments.config_file,
                                    config);
  }
  for (const auto& [name, text] : arguments.settings) {
    try {
      set_field(config, name, text);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(std::string("--") + error.what());
    }
  }
  return config;
}

}  // namespace

bool TrainArguments::gives(const std::string& field) const {
  return std::any_of(settings.begin(), settings.end(),
                     [&](const auto& setting) { return setting.first == field; });
}

TrainArguments parse_train_arguments(const Arguments& arguments) {
  CLI::App app(
      "Trains a small convolutional network on pictures of digits, on one or several ranks.",
      "lockstep train");
  TrainArguments result;
  std::string recipe, dropout;
  app.add_option("recipe", recipe, "what to train: mnist")->required();
  struct Slot {
    const ConfigField* field;
    std::string text;
    CLI::Option* option;
  };
  std::deque<Slot> slots;
  for (const ConfigField& field : config_fields()) {
    if (field.name == "recipe") continue;
    Slot& slot = slots.emplace_back(Slot{&field, {}, nullptr});
    const std::string fallback = field.fallback.empty() ? "" : " [" + field.fallback + "]";
    slot.option = app.add_option(option_name(field.name), slot.text, field.help + fallback)
                      ->take_last()
                      ->type_name("VALUE");
  }
  const auto* dropout_option =
      app.add_option("--dropout", dropout, "both dropouts at once; 0: none")->take_last();
  app.add_option("--config", result.config_file,
                 "JSON file of settings, such as a run's config.json; options win over it");
  app.add_option("--json", result.json, "also write the result to this file");
  app.add_flag("--resume", result.resume, "go on from OUTPUT/checkpoints/last");
  app.add_flag("--quiet", result.quiet, "no summary at the end");
  parse(app, arguments);
  if (recipe != "mnist") throw InvalidArgument("there is no recipe '" + recipe + "'; choose mnist");
  if (dropout_option->count() > 0) {
    result.settings.emplace_back("dropout1", dropout);
    result.settings.emplace_back("dropout2", dropout);
  }
  for (const Slot& slot : slots) {
    if (slot.option->count() > 0) result.settings.emplace_back(slot.field->name, slot.text);
  }
  return result;
}

TrainPlan make_train_plan(const TrainArguments& arguments, std::optional<int> ranks) {
  TrainPlan plan;
  TrainConfig recorded;
  if (arguments.resume) {
    const RunFolder folder{apply({}, arguments).output};
    if (!checkpoint_exists(folder.last())) {
      throw CheckpointError(
          folder.root.string() +
          ": has no checkpoints/last to resume; leave --resume out, or give --output");
    }
    const std::string source = (folder.last() / "config.json").string();
    recorded = train_config_from_json(
        read_checkpoint(folder.last(), CheckpointParts::kModelAndConfig).config_json, source);
    plan.config = recorded;
    plan.config.output = folder.root.string();
  }
  plan.config = apply(plan.config, arguments);
  if (ranks) {
    if (arguments.gives("nproc") && plan.config.nproc != *ranks) {
      throw InvalidArgument("--nproc is " + std::to_string(plan.config.nproc) +
                            ", but a launcher has started " + std::to_string(*ranks) +
                            " ranks; leave --nproc out");
    }
    plan.config.nproc = *ranks;
  }
  if (plan.config.data.empty()) {
    throw InvalidArgument(
        "--data is missing; give a directory with MNIST's four idx files, or 'digits' for the "
        "built-in ones");
  }
  plan.digits = plan.config.data == kDigits;
  if (plan.digits) plan.config.data = (fs::path(plan.config.output) / "data").string();
  plan.config.data = fs::absolute(plan.config.data).lexically_normal().string();
  plan.config = resolved(plan.config);
  if (arguments.resume) check_resumable(recorded, plan.config);
  return plan;
}

void check_train_input(const TrainPlan& plan, const TrainArguments& arguments) {
  const TrainConfig& config = plan.config;
  prepare_run_folder({config.output});
  check_writable(arguments.json);
  provide_digits(plan);
  const auto sizes = data::validate_mnist(config.data);
  check_against_data(config, sizes.train, sizes.test);
  if (!config.init_from.empty()) read_safetensors(config.init_from);
  if (arguments.resume) read_checkpoint(RunFolder{config.output}.last());
}

void provide_digits(const TrainPlan& plan) {
  if (plan.digits) data::generate_digits(plan.config.data);
}

}  // namespace lockstep::engine
