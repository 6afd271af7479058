#include "lockstep/train/image_training.h"

#include <torch/nn/functional/loss.h>
#include <torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/checkpoint/module_state.h"
#include "lockstep/checkpoint/on_root.h"
#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/output.h"
#include "lockstep/data/augment.h"
#include "lockstep/data/partition.h"
#include "lockstep/optim/decay_groups.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/parallel/ddp/sync_batch_norm.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/checkpointing.h"
#include "lockstep/train/image_data.h"
#include "lockstep/train/recipes.h"
#include "lockstep/train/strategy.h"
#include "lockstep/train/supervised_task.h"
#include "lockstep/train/tensorboard_callback.h"

namespace lockstep {
namespace {

// Keeps what a run ends with.
class ResultCallback final : public TrainCallback {
 public:
  explicit ResultCallback(TrainResult& result) : result_(result) {}
  void on_epoch(const TrainerState& state, const EpochEvent& event) override {
    result_.loss = event.loss;
    if (event.evaluation) result_.evaluation = *event.evaluation;
    seconds_ += event.seconds;
    samples_ += event.seconds * event.samples_per_s;
    result_.samples_per_s = seconds_ > 0 ? samples_ / seconds_ : 0;
    result_.state = state;
  }

 private:
  TrainResult& result_;
  double seconds_ = 0, samples_ = 0;
};

std::unique_ptr<data::Sampler> make_sampler(const TrainConfig& config, int64_t samples,
                                            const Communicator& comm) {
  if (config.sampler == "partition") {
    const auto parts = data::DataPartitioner::equal(samples, comm.size(), config.seed);
    return std::make_unique<data::SubsetSampler>(parts.use(comm.rank()),
                                                 data::SubsetSamplerOptions{.seed = config.seed});
  }
  return std::make_unique<data::DistributedSampler>(
      samples, comm, data::DistributedSamplerOptions{.seed = config.seed});
}

void load_init_from(ImageModel& model, const TrainConfig& config) {
  try {
    load(model, config.init_from);
  } catch (const CheckpointError& error) {
    throw InvalidArgument("init_from: " + std::string(error.what()));
  }
}

// The parameters are rank 0's draw from `seed`. It draws while the others wait, for ranks that are
// threads share one generator; they receive its parameters later, what they draw themselves does
// not count.
ImageModel draw_model(const TrainConfig& config, Communicator& comm) {
  if (comm.rank() != 0) comm.barrier();
  torch::manual_seed(static_cast<uint64_t>(config.seed));
  ImageModel model = make_image_model(config);
  if (comm.rank() == 0) comm.barrier();
  if (!config.init_from.empty()) load_init_from(model, config);
  torch::manual_seed(static_cast<uint64_t>(config.seed + comm.rank()));
  if (config.sync_batch_norm) convert_sync_batch_norm(model, comm);
  return model;
}

// Weight decay is for filters and matrices; without it there is one group, in the model's order.
std::vector<torch::optim::OptimizerParamGroup> parameter_groups(
    const torch::nn::Module& model, const torch::optim::SGDOptions& options) {
  if (options.weight_decay() != 0) return optim::decay_groups(model, options);
  return {torch::optim::OptimizerParamGroup(model.parameters())};
}

// The learning rate of each step; empty: the optimizer's own throughout.
std::function<double(int64_t)> learning_rates(const TrainConfig& config, int64_t steps_per_epoch) {
  if (config.schedule == "constant" && config.warmup == 0) return {};
  const optim::ScheduleOptions options{
      .total_steps = config.epochs * steps_per_epoch,
      .warmup = {.steps = static_cast<int64_t>(
                     std::llround(config.warmup * static_cast<double>(steps_per_epoch)))}};
  const auto schedule = config.schedule == "cosine"   ? optim::cosine(options)
                        : config.schedule == "linear" ? optim::linear(options)
                                                      : optim::constant(options);
  return [schedule, rate = config.lr](int64_t step) { return rate * schedule.factor(step); };
}

// Evaluates what a checkpoint would hold: ranks have BatchNorm statistics of their own, and rank
// 0's are those that are saved.
Evaluation evaluate(ImageModel& model, const data::ImageDataset& test, Communicator& comm,
                    int64_t classes) {
  constexpr int64_t kBatch = 500;
  const NamedTensors buffers = to_named_tensors(model->named_buffers());
  if (!buffers.empty()) broadcast_tensors(comm, buffers);
  return evaluate_classifier(model, test, comm, classes, kBatch);
}

void start_folder(const RunFolder& folder, const std::string& config_json,
                  const TrainRunOptions& options) {
  const OutputFolder output(folder.root);
  if (!options.resume) {
    const auto moved = move_former_run_aside(folder);
    if (moved && options.progress) write_all(STDERR_FILENO, *moved + "\n");
  }
  write_file_aside(folder.config(), config_json);
}

}  // namespace

TrainResult train_images(Communicator comm, const TrainConfig& config,
                         const TrainRunOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  if (config.nproc != comm.size() || config.batch_size < 1) {
    throw InvalidArgument("train_images: the configuration is for " + std::to_string(config.nproc) +
                          " ranks and not resolved for the " + std::to_string(comm.size()) +
                          " that there are");
  }
  const Recipe& recipe = recipe_of(config.recipe);
  const ImageData data = load_image_data(config, config.data);
  check_against_data(config, data.train.size(), data.test.size());
  const auto sampler = make_sampler(config, data.train.size(), comm);
  constexpr int64_t kPadding = 4;
  const data::AugmentedImages train(
      data.train,
      {.crop_padding = config.augment ? kPadding : 0, .flip = config.augment, .seed = config.seed});
  data::Loader loader(
      train, *sampler,
      {.batch_size = config.batch_size, .num_workers = static_cast<int>(config.workers)});

  StrategyModel model(draw_model(config, comm),
                      options.strategy ? options.strategy : make_strategy(config.strategy), comm);
  const auto options_of_sgd = torch::optim::SGDOptions(config.lr)
                                  .momentum(config.momentum)
                                  .weight_decay(config.weight_decay);
  const auto optimizer = model.strategy().make_optimizer(
      parameter_groups(*model.module(), options_of_sgd), options_of_sgd);
  SupervisedTask<ImageModel, data::AugmentedImages> task(
      {.model = model,
       .optimizer = *optimizer,
       .sampler = *sampler,
       .loader = loader,
       .loss = [](const at::Tensor& output,
                  const at::Tensor& target) { return torch::nll_loss(output, target); },
       .learning_rate = learning_rates(config, loader.batches()),
       .autocast = config.amp == "bf16" ? std::optional<amp::AutocastSettings>(std::in_place)
                                        : std::nullopt});
  TrainLoop trainer(
      comm, task.task([&] { return evaluate(model.module(), data.test, comm, recipe.classes); }),
      {.epochs = config.epochs,
       .max_steps = config.max_steps,
       .log_every = config.log_every,
       .save_every = config.save_every});

  const RunFolder folder{config.output};
  const std::string config_json = to_json(config);
  const TrainingRun run{comm,    *model.module(), model.strategy(), *optimizer,
                        trainer, nullptr,         {config_json, {}}};
  if (options.resume) restore_training(run, folder.last());
  on_root(comm, [&] { start_folder(folder, config_json, options); });

  TrainResult result;
  result.state = trainer.state();
  trainer.add(std::make_shared<ResultCallback>(result));
  if (comm.rank() == 0) {
    JsonlWriter metrics(folder.metrics(),
                        options.resume ? JsonlWriter::Mode::kAppend : JsonlWriter::Mode::kReplace);
    metrics.truncate(trainer.state().metrics_bytes);
    trainer.add(std::make_shared<MetricsCallback>(std::move(metrics)));
    TensorBoardOptions resumed;
    if (options.resume) resumed.resumed_at = trainer.state().step + 1;
    trainer.add(
        std::make_shared<TensorBoardCallback>(TensorBoardWriter(folder.tensorboard(), resumed)));
  }
  if (comm.rank() == 0 && options.progress) {
    trainer.add(std::make_shared<ProgressCallback>(
        ProgressCallbackOptions{.terminal = options.terminal,
                                .epochs = config.epochs,
                                .steps_per_epoch = loader.batches(),
                                .max_steps = config.max_steps,
                                .ranks = comm.size()}));
  }
  constexpr int64_t kKept = 1;  // besides the best
  trainer.add(std::make_shared<CheckpointCallback>(run, folder.checkpoints(), kKept));
  trainer.run();

  result.state = trainer.state();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  on_root(comm, [&] {
    write_file_aside(folder.report(),
                     run_report_svg(folder.metrics(), config.recipe + ", " + config.model + ", " +
                                                          std::to_string(comm.size()) +
                                                          (comm.size() == 1 ? " rank" : " ranks")));
    write_file_aside(folder.result(), to_json(result, config, comm.capabilities().backend));
  });
  return result;
}

ImageModel make_image_model(const TrainConfig& config) {
  const Recipe& recipe = recipe_of(config.recipe);
  return ImageModel(ImageModelOptions{.name = config.model,
                                      .channels = recipe.channels,
                                      .side = recipe.side,
                                      .classes = recipe.classes,
                                      .dropout1 = config.dropout1,
                                      .dropout2 = config.dropout2});
}

void check_init_from(const TrainConfig& config) {
  if (config.init_from.empty()) return;
  ImageModel model = make_image_model(config);
  load_init_from(model, config);
}

std::string to_json(const TrainResult& result, const TrainConfig& config,
                    const std::string& backend) {
  const RunFolder folder{config.output};
  const nlohmann::ordered_json json{{"recipe", config.recipe},
                                    {"model", config.model},
                                    {"accuracy", result.state.accuracy},
                                    {"loss", result.loss},
                                    {"test_loss", result.evaluation.loss},
                                    {"best_accuracy", result.state.best_score},
                                    {"best_step", result.state.best_step},
                                    {"epochs", result.state.epoch},
                                    {"steps", result.state.step},
                                    {"nproc", config.nproc},
                                    {"backend", backend},
                                    {"strategy", config.strategy},
                                    {"batch_size", config.batch_size},
                                    {"seconds", result.seconds},
                                    {"samples_per_s", result.samples_per_s},
                                    {"output", folder.root.string()},
                                    {"checkpoint_best", folder.best().string()},
                                    {"checkpoint_last", folder.last().string()},
                                    {"metrics", folder.metrics().string()},
                                    {"report", folder.report().string()}};
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep
