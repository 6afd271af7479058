#include "lockstep/train/train_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/model/bert_config.h"
#include "lockstep/model/image_model.h"
#include "lockstep/train/recipes.h"
#include "lockstep/train/settings.h"
#include "lockstep/train/strategy.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;
using namespace settings;

bool is_text_recipe(const std::string& name) {
  const Recipe* recipe = find_recipe(name);
  return recipe != nullptr && recipe->kind == RecipeKind::kTexts;
}

// Every field once: name, help, member.
template <class Config, class Visit>
void visit_fields(Config& config, Visit&& visit) {
  const bool cifar = config.recipe == "cifar", texts = is_text_recipe(config.recipe);
  const Recipe* recipe = find_recipe(config.recipe);
  visit("recipe", "the recipe", config.recipe);
  visit("data",
        recipe == nullptr
            ? std::string("the data")
            : "directory of " + recipe->files + (texts ? ", a file of them" : " (plain or .gz)") +
                  ", or '" + recipe->built_in + "': the built-in data set",
        config.data);
  visit("output", "directory for checkpoints, metrics and the report", config.output);
  visit("nproc", "ranks to start", config.nproc);
  visit("backend", "shm, tcp, hierarchical or gloo; empty: chosen", config.backend);
  visit("device", "cpu", config.device);
  visit("strategy", "how the ranks train together: ddp, average, ring, naive-ring, horovod or zero",
        config.strategy);
  if (texts) {
    visit("model", "BERT: mini, base, or a directory of Hugging Face's form", config.model);
    visit("vocab", "BERT's vocab.txt or tokenizer.json; empty: the model's, or the data's",
          config.vocab);
    visit("padding", "max_length, longest or packed", config.padding);
    visit("max_length", "tokens of a text; longer ones are cut", config.max_length);
    visit("remove_spaces",
          "take the spaces out of every text: for Chinese whose words are cut by spaces",
          config.remove_spaces);
  } else {
    visit("sampler",
          "distributed: samples dealt anew every epoch; partition: tutorial 000's fixed parts",
          config.sampler);
  }
  if (cifar) {
    visit("model", "resnet18, resnet50 or simple-cnn", config.model);
    visit("sync_batch_norm", "BatchNorm's statistics over all ranks' batches",
          config.sync_batch_norm);
  }
  visit("epochs", "passes over the training data", config.epochs);
  visit("batch_size", texts ? "texts a rank and step" : "samples a rank and step; 0: 128 / nproc",
        config.batch_size);
  visit("lr",
        cifar   ? "learning rate; 0: 0.1 for ResNets, 0.02 for simple-cnn"
        : texts ? "learning rate; 0: 5e-4, or 3e-5 for a model of a directory"
                : "learning rate",
        config.lr);
  if (!texts) visit("momentum", "momentum of SGD", config.momentum);
  visit("weight_decay", "weight decay, but of biases and normalisation layers",
        config.weight_decay);
  visit("schedule", "the learning rate after the warm-up: constant, linear or cosine",
        config.schedule);
  if (texts)
    visit("warmup_ratio", "part of all steps in which the learning rate rises from 0",
          config.warmup_ratio);
  else
    visit("warmup", "epochs in which the learning rate rises from 0", config.warmup);
  if (cifar) visit("augment", "random crops with a padding of 4, and mirroring", config.augment);
  visit("amp", "none, or bf16: forward computes in bfloat16 where that is safe", config.amp);
  visit("seed", "of parameters and shuffling; dropout uses seed + rank", config.seed);
  const std::string whose = cifar ? "simple-cnn: " : "";
  if (!texts) {
    visit("dropout1", whose + "dropout before the first linear layer", config.dropout1);
    visit("dropout2", whose + "dropout before the second linear layer", config.dropout2);
  }
  if (!cifar && !texts) {
    visit("mean", "subtracted from pixels scaled to 0..1", config.mean);
    visit("stddev", "by which they are then divided", config.stddev);
  }
  visit("max_steps", "stop after so many optimizer steps; 0: no limit", config.max_steps);
  visit("log_every", "steps between lines of metrics.jsonl", config.log_every);
  visit("save_every", "steps between checkpoints within an epoch; 0: after each epoch only",
        config.save_every);
  if (!texts)
    visit("init_from", ".safetensors or .pt file, or checkpoint, of parameters to start from",
          config.init_from);
  visit("workers", "threads a rank that load data", config.workers);
  visit("timeout", "seconds that a rank waits for the others", config.timeout);
}

// Whether a run begun with `config` may be resumed with another value of the field.
bool changeable(const TrainConfig& config, std::string_view name) {
  static const std::set<std::string, std::less<>> names{
      "data",      "output",     "backend", "device",  "epochs",   "max_steps",
      "log_every", "save_every", "workers", "timeout", "init_from"};
  // A schedule that falls is one of all epochs.
  if (name == "epochs" && config.schedule != "constant") return false;
  return names.count(name) != 0;
}

std::string as_text(const std::string& value) {
  return value;
}
std::string as_text(bool value) {
  return value ? "true" : "false";
}
std::string as_text(int64_t value) {
  return std::to_string(value);
}
std::string as_text(double value) {
  return ordered_json(value).dump();
}

std::vector<std::string> field_names(const TrainConfig& config) {
  std::vector<std::string> names;
  for (const ConfigField& field : config_fields(config.recipe)) names.push_back(field.name);
  return names;
}

std::string see_help(const TrainConfig& config) {
  return "; `lockstep train " + config.recipe + " --help` lists them";
}

std::string hint_for(const TrainConfig& config, const std::string& name) {
  const std::string near = nearest_name(name, field_names(config));
  return near.empty() ? see_help(config) : "; did you mean '" + near + "'?";
}

void check_dropout(const char* name, double value) {
  if (!(value >= 0 && value < 1)) refuse(name, as_text(value), "0 or more, and less than 1");
}

void resolve_images(TrainConfig& config) {
  constexpr int64_t kTutorialBatch = 128;
  constexpr double kResNetRate = 0.1, kSimpleCnnRate = 0.02;  // with BatchNorm, and without
  check_choice("model", config.model, image_model_names());
  if (!(config.warmup >= 0 && config.warmup <= static_cast<double>(config.epochs)))
    refuse("warmup", as_text(config.warmup), "0 to " + std::to_string(config.epochs) + " epochs");
  if (config.sync_batch_norm && config.model == "simple-cnn")
    refuse("sync_batch_norm", "true", "false: simple-cnn has no BatchNorm");
  if (config.lr == 0 && config.recipe == "cifar")
    config.lr = config.model == "simple-cnn" ? kSimpleCnnRate : kResNetRate;
  if (!(config.momentum >= 0 && config.momentum < 1))
    refuse("momentum", as_text(config.momentum), "0 or more, and less than 1");
  if (!(config.stddev > 0) || !std::isfinite(config.stddev))
    refuse("stddev", as_text(config.stddev), "a number above 0");
  if (!std::isfinite(config.mean)) refuse("mean", as_text(config.mean), "a number");
  check_dropout("dropout1", config.dropout1);
  check_dropout("dropout2", config.dropout2);
  if (config.batch_size == 0) config.batch_size = kTutorialBatch / config.nproc;
  if (config.batch_size == 0) {
    throw InvalidArgument("nproc is " + std::to_string(config.nproc) +
                          ", which leaves nothing of the default batch of 128; give batch_size");
  }
}

void resolve_texts(TrainConfig& config) {
  constexpr double kDrawnRate = 5e-4, kPretrainedRate = 3e-5;
  constexpr int64_t kBatch = 32;
  check_choice("padding", config.padding, {"max_length", "longest", "packed"});
  if (config.max_length < 2 || config.max_length > 512)
    refuse("max_length", std::to_string(config.max_length), "2 to 512");
  if (!(config.warmup_ratio >= 0 && config.warmup_ratio <= 1))
    refuse("warmup_ratio", as_text(config.warmup_ratio), "0 to 1");
  const auto& presets = bert_preset_names();
  const bool is_preset = std::find(presets.begin(), presets.end(), config.model) != presets.end();
  if (config.lr == 0) config.lr = is_preset ? kDrawnRate : kPretrainedRate;
  if (config.batch_size == 0) config.batch_size = kBatch;
}

}  // namespace

TrainConfig default_config(const std::string& recipe) {
  TrainConfig config;
  config.recipe = recipe_of(recipe).name;
  if (is_text_recipe(recipe)) {
    config.output = "runs/text";
    config.model = "mini";
    config.epochs = 3;
    config.batch_size = 32;
    config.lr = 0;
    config.weight_decay = 0.01;
    config.schedule = "linear";
    config.seed = 123;
    return config;
  }
  if (recipe != "cifar") return config;
  config.output = "runs/cifar";
  config.model = "resnet18";
  config.epochs = 30;
  config.lr = 0;
  config.momentum = 0.9;
  config.weight_decay = 5e-4;
  config.schedule = "cosine";
  config.warmup = 1;
  config.augment = true;
  return config;
}

std::vector<ConfigField> config_fields(const std::string& recipe) {
  std::vector<ConfigField> list;
  const TrainConfig defaults = default_config(recipe);
  visit_fields(defaults, [&](const char* name, const std::string& help, const auto& value) {
    constexpr bool kSwitch = std::is_same_v<std::decay_t<decltype(value)>, bool>;
    list.push_back({name, help, as_text(value), kSwitch});
  });
  return list;
}

void set_field(TrainConfig& config, const std::string& name, const std::string& text) {
  bool found = false;
  visit_fields(config, [&](const char* field, const std::string&, auto& value) {
    if (name != field) return;
    found = true;
    parse_into(name, text, value);
  });
  if (!found) throw InvalidArgument("there is no setting '" + name + "'" + hint_for(config, name));
}

std::string to_json(const TrainConfig& config) {
  ordered_json json;
  visit_fields(
      config, [&](const char* name, const std::string&, const auto& value) { json[name] = value; });
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

TrainConfig train_config_from_json(const std::string& text, const std::string& source,
                                   const std::optional<TrainConfig>& base) {
  const nlohmann::json json = parse_object(text, source);
  std::string recipe = base ? base->recipe : "mnist";
  if (json.contains("recipe")) read_into(json["recipe"], source + ": recipe", recipe);
  if (find_recipe(recipe) == nullptr)
    refuse(source + ": recipe", "'" + recipe + "'", recipe_names_text());
  if (base && base->recipe != recipe)
    refuse(source + ": recipe", "'" + recipe + "'", "a file for '" + base->recipe + "'");
  TrainConfig config = base ? *base : default_config(recipe);
  read_members(
      json, source, config,
      [](auto& into, const auto& each) {
        visit_fields(
            into, [&](const char* name, const std::string&, auto& member) { each(name, member); });
      },
      see_help(config));
  return config;
}

TrainConfig resolved(const TrainConfig& config) {
  TrainConfig result = config;
  const Recipe* recipe = find_recipe(config.recipe);
  if (recipe == nullptr) refuse("recipe", "'" + config.recipe + "'", recipe_names_text());
  if (config.data.empty()) {
    refuse("data", "", "a directory with " + recipe->files + ", or '" + recipe->built_in + "'");
  }
  if (config.output.empty()) refuse("output", "", "a directory");
  at_least("nproc", config.nproc, 1);
  make_strategy(config.strategy);
  if (config.sampler != "distributed" && config.sampler != "partition") {
    refuse("sampler", "'" + config.sampler + "'", "distributed or partition");
  }
  if (config.device != "cpu")
    refuse("device", "'" + config.device + "'", "cpu, the device that the backends carry so far");
  constexpr std::array<std::string_view, 6> kBackends = {"",     "shm",  "tcp", "hierarchical",
                                                         "gloo", "local"};
  if (std::find(kBackends.begin(), kBackends.end(), config.backend) == kBackends.end())
    refuse("backend", "'" + config.backend + "'", "shm, tcp, hierarchical or gloo");
  if (config.backend == "local" && config.nproc > 1)
    refuse("backend", "'local'", "shm, tcp, hierarchical or gloo: local is for one rank");
  at_least("epochs", config.epochs, 1);
  at_least("batch_size", config.batch_size, 0);
  at_least("max_steps", config.max_steps, 0);
  at_least("log_every", config.log_every, 1);
  at_least("save_every", config.save_every, 0);
  at_least("workers", config.workers, 0);
  if (config.workers > 64) refuse("workers", std::to_string(config.workers), "64 or fewer");
  check_choice("schedule", config.schedule, {"constant", "linear", "cosine"});
  check_choice("amp", config.amp, {"none", "bf16"});
  if (!(config.weight_decay >= 0) || !std::isfinite(config.weight_decay))
    refuse("weight_decay", as_text(config.weight_decay), "0 or more");
  if (is_text_recipe(config.recipe))
    resolve_texts(result);
  else
    resolve_images(result);
  if (!(result.lr > 0) || !std::isfinite(result.lr))
    refuse("lr", as_text(config.lr), "a number above 0");
  if (!(config.timeout > 0 && config.timeout < 1e7))
    refuse("timeout", as_text(config.timeout), "seconds above 0");
  return result;
}

void check_against_data(const TrainConfig& config, int64_t train_samples, int64_t test_samples) {
  const auto count = [](int64_t samples) {
    return std::to_string(samples) + (samples == 1 ? " sample" : " samples");
  };
  if (train_samples < 1 || test_samples < 1) {
    throw InvalidArgument(config.data + ": has " + count(train_samples) + " for training and " +
                          count(test_samples) + " for testing; both are needed");
  }
  if (config.nproc > train_samples) {
    throw InvalidArgument("nproc is " + std::to_string(config.nproc) + ", more ranks than the " +
                          count(train_samples) + " for training in " + config.data +
                          "; start fewer");
  }
}

void check_resumable(const TrainConfig& recorded, const TrainConfig& now) {
  std::string differences;
  visit_fields(recorded, [&](const char* name, const std::string&, const auto& before) {
    if (changeable(recorded, name)) return;
    visit_fields(now, [&](const char* other, const std::string&, const auto& after) {
      if (std::string_view(name) != other || as_text(before) == as_text(after)) return;
      differences += (differences.empty() ? "" : ", ");
      differences.append(name)
          .append(" was ")
          .append(as_text(before))
          .append(" and is now ")
          .append(as_text(after));
    });
  });
  if (!differences.empty()) {
    throw InvalidArgument("cannot resume: " + differences +
                          "; resume with the recorded settings, or start anew elsewhere");
  }
}

}  // namespace lockstep
