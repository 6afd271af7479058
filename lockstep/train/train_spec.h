// TrainSpec: the settings of a training as one value. spec_of() makes it of TrainingArguments and
// of the recipes' TrainConfig; Trainer and the recipes train by it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/amp/autocast.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sampler.h"
#include "lockstep/data/step_sampler.h"
#include "lockstep/optim/step_spec.h"
#include "lockstep/train/train_loop.h"

namespace lockstep::inline v0 {

class Strategy;

struct LOCKSTEP_API TrainSpec {
  // How samples become batches.
  struct Data {
    int64_t batch_size = 8;  // of a rank
    // The samples of a step over all ranks, which then share them unequally; batch_size is the
    // largest share. 0: all ranks have batch_size.
    int64_t step_samples = 0;
    bool fixed_parts = false;      // each rank keeps its part of the data (data/partition.h)
    bool group_by_length = false;  // batches of similar lengths (LengthGroupedSampler)
    bool drop_last = false;
    int64_t workers = 0;  // threads of a rank that load data
    int64_t seed = 0;     // of shuffling
  };
  // The output of a run, and where it goes.
  struct Output {
    std::filesystem::path folder = {};
    std::filesystem::path checkpoints = {};  // the folder of the series (checkpoint_series.h)
    bool saves = true;
    int64_t kept = 0;         // checkpoints besides the best; 0: all
    bool async_save = false;  // training continues while a checkpoint is written
    std::optional<std::filesystem::path> resume = {};  // a checkpoint to continue from
    bool tensorboard = false;
    bool progress = true;  // on rank 0's stderr: a line of the memory, and a bar
    // A rank serves its metrics on this port plus its local rank (prometheus_callback.h); 0: no
    // rank does.
    int64_t metrics_port = 0;
  };

  Data data = {};
  optim::StepSpec step = {};
  double epochs = 3;  // passes over the data; the last may be a part of one
  // True: a loop.max_steps above 0 replaces the epochs. False: the run ends with the first of both,
  // and its schedule is that of all epochs.
  bool max_steps_alone = false;
  TrainLoopOptions loop = {};   // its epochs and max_steps are those of loop_options()
  int64_t check_replicas = 0;   // steps (replica_check.h); 0: never
  double evict_stragglers = 0;  // straggler.h; 0: never
  // The decay of an average of the parameters (optim/exponential_average.h) that is evaluated and
  // saved as the model; 0: none. And whether buffers are averaged as well.
  double ema = 0;
  bool ema_buffers = false;
  Output output = {};
};

// Steps of the optimizer.
struct RunSteps {
  int64_t per_epoch = 0;
  int64_t all = 0;  // those that the schedule is laid out for
};
// The steps of a run over epochs of `per_epoch` steps.
LOCKSTEP_API RunSteps run_steps(const TrainSpec& spec, int64_t per_epoch);
// The loop of a run, with the epochs and steps of `spec`.
LOCKSTEP_API TrainLoopOptions loop_options(const TrainSpec& spec, int64_t steps_per_epoch);

// Throws: InvalidArgument, which begins with the setting's name, for averaged buffers without an
// average.
LOCKSTEP_API void check_ema(double ema, bool ema_buffers);

// Lets the loop show these steps ("10:12"; "": none) in `file`, and with `nvtx` all steps as NVTX
// ranges. check_trace() throws InvalidArgument, which begins with the setting's name, for other
// texts, for operators without steps, and for nvtx where libtorch has none.
LOCKSTEP_API void check_trace(const std::string& steps, bool operators, bool nvtx);
LOCKSTEP_API void add_trace(TrainLoopOptions& loop, const std::string& steps, bool operators,
                            bool nvtx, const std::filesystem::path& file);

// nullopt: forward computes in float32.
LOCKSTEP_API std::optional<amp::AutocastSettings> autocast_of(optim::Precision precision,
                                                              at::Device device);

// The samples that a rank loads, and the size of its batches.
struct DealtSamples {
  Communicator data_ranks;  // StrategyPlacement::data_ranks(), whose gradients are averaged
  std::unique_ptr<data::Sampler> sampler = nullptr;
  int64_t batch_size = 0;
  // The sampler, if ranks share a step's samples unequally.
  const data::StepSampler* shares = nullptr;
};
// How `ranks` share a step of `samples`, both at least 1: as TrainSpec::Data has it.
struct StepShares {
  int64_t largest = 0;       // a rank's, its batch_size
  int64_t step_samples = 0;  // 0: all shares are equal
};
LOCKSTEP_API StepShares shares_of_step(int64_t samples, int64_t ranks);
// The data of a run that began on `before` ranks, of a strategy that gives each its own samples,
// and goes on with `now` of them: a step keeps its samples.
// Throws: InvalidArgument where ranks need equal batches, and `now` of them cannot have those.
LOCKSTEP_API TrainSpec::Data dealt_anew(TrainSpec::Data data, const Strategy& strategy, int before,
                                        int now);
// Deals a data set of `size` samples. `lengths`: of the samples, for group_by_length.
// Throws: InvalidArgument where these are needed and there are none.
LOCKSTEP_API DealtSamples deal(const TrainSpec::Data& spec, int64_t size, const Strategy& strategy,
                               const Communicator& comm,
                               const std::function<std::vector<int64_t>()>& lengths = {});
LOCKSTEP_API data::LoaderOptions loader_options(const TrainSpec::Data& spec,
                                                const DealtSamples& dealt, at::Device device);

}  // namespace lockstep::inline v0
