// Measures how long the parts of a training step take here: layers of language models, their ends,
// and the optimizer's update, each on a rank by itself while all ranks of the host do the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/model/lm_config.h"
#include "lockstep/plan/calibration/calibration.h"

namespace lockstep::inline v0::engine {

struct MeasuredModel {
  std::string name;
  LmConfig config;
  int64_t tokens = 128;  // of a sequence
};
// "tiny:128,mini:128": presets, or folders with a config.json, and the tokens of their sequences.
// "none": none. Throws InvalidArgument in one line.
std::vector<MeasuredModel> parse_measured_models(const std::string& text);

// The models whose layers are measured for one: itself, and what a rank has of it where tensor
// divides it by 2 and by 4, if it divides. Pure.
std::vector<LmConfig> divided_configs(const LmConfig& config);

struct StepPartsOptions {
  std::vector<MeasuredModel> models;
  int64_t largest_batch = 8;  // sequences; powers of two up to it
  double sample_s = 0.4;      // about, of one measurement
  int processors = 0;         // of the host; 0: one for each rank
};
// Collective: all ranks of a host, each a process that has no communicator. libtorch has one thread
// meanwhile. Shows its progress on rank 0's stderr. The samples are means over the ranks. `others`
// becomes the processors that other processes kept busy, where they are more.
std::vector<plan::PartSample> measure_step_parts(const StepPartsOptions& options, double* others);

}  // namespace lockstep::inline v0::engine
