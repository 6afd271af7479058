// The recipes that classify images, on one or several ranks: mnist, which is tutorial 000's, and
// cifar.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/comm/communicator.h"
#include "lockstep/model/image_model.h"
#include "lockstep/report/terminal.h"
#include "lockstep/train/evaluation.h"
#include "lockstep/train/run_folder.h"
#include "lockstep/train/strategy.h"
#include "lockstep/train/train_config.h"
#include "lockstep/train/trainer_state.h"

namespace lockstep {

struct TrainRunOptions {
  bool resume = false;     // go on from output/checkpoints/last
  bool progress = true;    // on rank 0's stderr
  Terminal terminal = {};  // that stderr goes to
  // In place of the configuration's.
  std::shared_ptr<Strategy> strategy = nullptr;
};

// How a run ended. The same on every rank.
struct TrainResult {
  TrainerState state;
  double loss = 0;           // mean of the last epoch, over ranks and samples
  Evaluation evaluation;     // the latest one
  double seconds = 0;        // of this call, from loading data to the last checkpoint
  double samples_per_s = 0;  // of training, evaluation and checkpoints left out
};

// Trains by `config`, which must be resolved() and whose nproc must be the number of ranks, and
// leaves in config.output what run_folder.h names. A former run there is moved aside unless it is
// resumed. Collective. Throws DataError, CheckpointError, InvalidArgument before the first step;
// later what the communicator and the checkpoint's writer throw.
TrainResult train_images(Communicator comm, const TrainConfig& config,
                         const TrainRunOptions& options = {});

// The untrained model of a configuration. Throws InvalidArgument.
ImageModel make_image_model(const TrainConfig& config);

// Throws InvalidArgument unless config.init_from is "" or holds the parameters of the model.
void check_init_from(const TrainConfig& config);

// The result as JSON (result.json, --json): recipe, model, accuracy, loss, best_accuracy,
// best_step, epochs, steps, nproc, backend, strategy, batch_size, seconds, samples_per_s, output,
// checkpoint_best, checkpoint_last, metrics, report.
std::string to_json(const TrainResult& result, const TrainConfig& config,
                    const std::string& backend);

}  // namespace lockstep
