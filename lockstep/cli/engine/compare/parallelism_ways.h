// The ways in which `lockstep compare --parallelism` divides one language model among the ranks,
// and the theory of each. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/model/lm_config.h"
#include "lockstep/plan/layout/layout.h"
#include "lockstep/plan/model/model_shape.h"
#include "lockstep/products/parallelism.h"

namespace lockstep::inline v0::engine {

struct DividedSettings {
  int nproc = 4;
  int64_t steps = 10;    // timed ones
  int64_t batch = 8;     // sequences of a step, of all ranks together
  int64_t length = 128;  // tokens of a sequence
  std::string model = "tiny";
  int64_t vocabulary = 2048;
  // The model's; 0: the preset's. A hidden size other than the preset's has an MLP four times as
  // wide.
  int64_t layers = 0, hidden = 0, heads = 0;
  int threads = 1;  // a rank's
};
// Refuses sizes that no way could use.
// Throws: InvalidArgument in one line.
void check_settings(const DividedSettings& settings);

// The model to train. With experts, each layer has as many as there are ranks.
LmConfig divided_model(const DividedSettings& settings, bool experts);

struct DividedWay {
  std::string name;  // "data=4 zero 1"
  Parallelism how;
  bool experts = false;  // the model has them
};
struct LeftOutWay {
  std::string name, why;
};
struct DividedPlan {
  std::vector<DividedWay> ways;
  std::vector<LeftOutWay> left_out;
};
// Plans all ways by themselves, then three products, each on all ranks. Those that do not fit are
// left out.
DividedPlan plan_divided(const DividedSettings& settings);

// The same for a planner: what a way trains, and how it is divided. Pure.
plan::ModelShape planned_model(const DividedWay& way, const DividedSettings& settings);
plan::Layout planned_layout(const DividedWay& way, const DividedSettings& settings);

// The planned bytes of tensors on the fullest rank of one host, at the worst moment of a step.
double planned_bytes(const DividedWay& way, const DividedSettings& settings);

// The theory for one rank, where everything divides evenly.
struct DividedTheory {
  // In bytes; the state is Adam's. Each rank counts as if it had a host of its own. On one host
  // ZeRO's ranks have one copy of the parameters, of which each holds a part in every stage, and
  // read it instead of sending it.
  double parameters = 0, gradients = 0, state = 0;
  // The part of the whole batch's activations in one process that is held at once. Of a layer's 34
  // bytes per value, 24 are inside the parts that tensor divides (Korthikanti et al.,
  // arXiv:2205.05198, section 4); a pipeline under 1f1b holds a micro-batch for each stage
  // (Narayanan et al., arXiv:2104.04473).
  double activations = 0;
  // The bytes that the rank that sends most sends in a step, by rings (Patarasuk and Yuan, 2009).
  double sent = 0;
  std::optional<double> bubble = {};  // (makespan - ideal) / ideal, with a pipeline
};
DividedTheory theory_of(const DividedWay& way, const DividedSettings& settings);

}  // namespace lockstep::inline v0::engine
