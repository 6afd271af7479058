// `lockstep train lm --mesh auto`: the fastest layout of a model on the ranks of a run that fits
// into this machine's memory, as a plan finds it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/env.h"
#include "lockstep/plan/calibration/calibration.h"
#include "lockstep/plan/model/model_shape.h"
#include "lockstep/plan/search/search.h"
#include "lockstep/recipes/train_config.h"

namespace lockstep::inline v0::engine {

inline constexpr const char* kAutoMesh = "auto";

// The request for a search, from what the run fixes: its ranks and batch, its precision, and what
// the user has chosen beside the mesh. `zero`: the stage of a strategy that was asked for. Pure.
plan::SearchRequest request_of(const TrainConfig& config, std::optional<int> zero);

// The layout as settings: mesh, strategy, pipe_schedule, micro_batches, divided_rows,
// gradient_checkpointing, and batch_size, so that a step has the samples that it would have had.
// Pure.
void take_layout(const plan::Layout& layout, TrainConfig* config);
// The same as options of `lockstep train lm`, for the ranks that a run starts: they need not choose
// again, and cannot choose otherwise. Pure.
std::vector<std::string> options_of_layout(const TrainConfig& config);

// This machine with so many ranks: the file that LOCKSTEP_MACHINE names (lockstep plan
// --calibrate), or, without it, rough figures from the processors and the memory that this process
// may use. Throws InvalidArgument for a file that cannot be read.
plan::Calibration this_machine(int ranks, const EnvLookup& env);

// The shape of a language model of `lockstep train`: a preset, or a directory with a config.json.
// A preset's vocabulary is the data's, and is not known yet: 4096 words count.
plan::ModelShape shape_of(const std::string& model);

// The simplest of the layouts that are as fast as a plan can tell (within 2 %): it divides the
// model along the fewest axes, then has the lowest stage of ZeRO, of which 0 and 1 count as one,
// and then is the fastest. Pure. Requires: at least one candidate, the fastest first.
const plan::Candidate& simplest_of(const std::vector<plan::Candidate>& best);

// Replaces mesh "auto" by the best layout, and says in one line which and why. Throws
// InvalidArgument where none fits, in one line with what lacks least.
std::string choose_mesh(std::optional<int> zero, const EnvLookup& env, TrainConfig* config);

}  // namespace lockstep::inline v0::engine
