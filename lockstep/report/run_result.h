// The result of one training run as a file: training programs write it with --json, and `lockstep
// compare` reads it.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/report/classification_report.h"

namespace lockstep::inline v0 {

// The parts of a step's time, in this order.
inline constexpr std::array<const char*, 5> kStepParts{"data", "forward", "backward", "wait",
                                                       "optimizer"};

// An evaluation of a run.
struct RunEvaluation {
  int64_t step = 0;
  double loss = 0;
  double accuracy = 0;
};

// The description of a run, and its results.
struct RunResult {
  std::string method = {};   // "distributed"
  int64_t nproc = 1;         // ranks or devices
  std::string model = {};    // "mini"
  std::string dtype = {};    // the computation's: "float32", "bfloat16"
  std::string padding = {};  // "max_length", "longest", "packed"
  int64_t steps = 0;
  double epochs = 0;
  int64_t samples = 0;     // trained samples of all ranks
  int64_t batch_size = 0;  // one rank's
  double seconds = 0;  // from the first step's start to the last step's end, without evaluations
  double samples_per_s = 0;
  std::optional<double> startup_s = {};  // from the command to the first step's start
  std::vector<double> losses = {};       // one per step, the mean over ranks; NaN if it was none
  std::vector<RunEvaluation> evaluations = {};
  std::optional<double> dev_loss = {}, dev_accuracy = {}, macro_f1 = {}, weighted_f1 = {};
  std::optional<ConfusionMatrix> confusion = {};  // on the dev set
  std::vector<double> peak_memory_mib = {};       // one per rank
  // Rank 0's, summed over the run.
  std::optional<std::array<double, kStepParts.size()>> parts_s = {};
  std::string checkpoint = {};  // path
};

// The fields that are present, under the names above; also "minutes" beside seconds, "labels"
// beside "confusion" (rows are true classes), and parts_s by name.
LOCKSTEP_API nlohmann::ordered_json to_json(const RunResult& result);

// Reads the JSON back. method, nproc, steps, samples, seconds, samples_per_s and losses must be
// present; unknown fields are ignored, and null counts as absent.
// Throws: DataError with one line that names `where` (the file), the field and its error.
LOCKSTEP_API RunResult parse_run_result(const std::string& text, const std::string& where);
LOCKSTEP_API RunResult run_result_of(const nlohmann::json& json, const std::string& where);

}  // namespace lockstep::inline v0
