// The result of one training run as a file: what a training program writes with --json, and
// `lockstep compare` reads.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/report/classification_report.h"

namespace lockstep {

// Where a step's time goes, in this order.
inline constexpr std::array<const char*, 5> kStepParts{"data", "forward", "backward", "wait",
                                                       "optimizer"};

struct RunEvaluation {
  int64_t step = 0;
  double loss = 0;
  double accuracy = 0;
};

struct RunResult {
  std::string method = {};   // "distributed"
  int64_t nproc = 1;         // ranks or devices
  std::string model = {};    // "mini"
  std::string dtype = {};    // that computes: "float32", "bfloat16"
  std::string padding = {};  // "max_length", "longest", "packed"
  int64_t steps = 0;
  double epochs = 0;
  int64_t samples = 0;     // trained on, over all ranks
  int64_t batch_size = 0;  // of a rank
  double seconds = 0;      // from the first step's start to the last one's end, without evaluations
  double samples_per_s = 0;
  std::optional<double> startup_s = {};  // from the command to the first step's start
  std::vector<double> losses = {};       // one a step, mean over ranks; NaN where it was none
  std::vector<RunEvaluation> evaluations = {};
  std::optional<double> dev_loss = {}, dev_accuracy = {}, macro_f1 = {}, weighted_f1 = {};
  std::optional<ConfusionMatrix> confusion = {};                      // on the dev set
  std::vector<double> peak_memory_mib = {};                           // one a rank
  std::optional<std::array<double, kStepParts.size()>> parts_s = {};  // rank 0's, sums over the run
  std::string checkpoint = {};                                        // path
};

// The fields that are there, under the names above; "minutes" beside seconds, "labels" beside
// "confusion" (rows: true classes), parts_s by name.
nlohmann::ordered_json to_json(const RunResult& result);

// The other way. method, nproc, steps, samples, seconds, samples_per_s and losses must be there;
// unknown fields are passed over, null counts as absent. Throws DataError of one line that names
// `where` (the file), the field and what is wrong with it.
RunResult parse_run_result(const std::string& text, const std::string& where);
RunResult run_result_of(const nlohmann::json& json, const std::string& where);

}  // namespace lockstep
