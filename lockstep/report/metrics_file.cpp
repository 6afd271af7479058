#include "lockstep/report/metrics_file.h"

#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/named_file.h"
#include "lockstep/core/quantile.h"

namespace lockstep::inline v0 {

using nlohmann::json;

std::vector<json> read_metrics(const std::filesystem::path& path) {
  std::istringstream file;
  try {
    file.str(read_named_file(path));
  } catch (const InvalidArgument& error) {
    throw DataError(error.what());
  }
  std::vector<json> records;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.empty()) continue;
    json record = json::parse(line, nullptr, /*allow_exceptions=*/false);
    const bool good = record.is_object() &&
                      (!record.contains("step") || record["step"].is_number_integer()) &&
                      (!record.contains("type") || record["type"].is_string());
    if (!good) {
      throw DataError(path.string() + ":" + std::to_string(number) +
                      ": is no JSON object of a step; the file is damaged");
    }
    records.push_back(std::move(record));
  }
  return records;
}

double checkpoint_stall_of(const std::filesystem::path& run) {
  std::error_code ignored;
  const std::filesystem::path file =
      std::filesystem::is_directory(run, ignored) ? run / "metrics.jsonl" : run;
  std::vector<double> stalls;
  for (const json& record : read_metrics(file)) {
    const auto found = record.find("checkpoint_s");
    if (found == record.end()) continue;
    const double seconds = found->is_number() ? found->get<double>() : -1;
    if (!(seconds >= 0))
      throw DataError(file.string() + ": has a checkpoint_s that is no time; the file is damaged");
    stalls.push_back(seconds);
  }
  if (stalls.empty())
    throw DataError(file.string() +
                    ": no log has checkpoint_s; train with checkpoints between the logs "
                    "(--save-every, --log-every)");
  return median(std::move(stalls));
}

}  // namespace lockstep::inline v0
