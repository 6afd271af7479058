#include "lockstep/train/run_folder.h"

#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/core/errors.h"
#include "lockstep/report/line_chart.h"

namespace lockstep {
namespace fs = std::filesystem;

bool move_former_run_aside(const RunFolder& folder) {
  const fs::path previous = folder.root / "previous";
  const fs::path parts[] = {folder.checkpoints(), folder.metrics(), folder.config(),
                            folder.result(),      folder.report(),  folder.tensorboard()};
  bool any = false;
  for (const fs::path& part : parts) any = any || fs::exists(part);
  if (!any) return false;
  std::error_code error;
  fs::remove_all(previous, error);
  if (!error) fs::create_directory(previous, error);
  for (const fs::path& part : parts) {
    if (!error && fs::exists(part)) fs::rename(part, previous / part.filename(), error);
  }
  if (error)
    throw system_error("cannot move the former run to " + previous.string(), error.value());
  return true;
}

fs::path find_checkpoint(const fs::path& path) {
  const RunFolder folder{path};
  for (const fs::path& candidate : {path, folder.best(), folder.last()}) {
    if (checkpoint_exists(candidate)) return candidate;
  }
  throw CheckpointError(
      path.string() +
      ": holds no checkpoint; give the output directory of a training run, or one of its " +
      "checkpoints");
}

std::string run_report_svg(const fs::path& metrics, const std::string& title) {
  Series train{"training", {}, {}}, test{"test", {}, {}, true}, accuracy{"test accuracy", {}, {}};
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") || !json.contains("loss") ||
        !json["step"].is_number() || !json["loss"].is_number()) {
      continue;
    }
    const bool evaluated = json.contains("accuracy") && json["accuracy"].is_number();
    Series& loss = evaluated ? test : train;
    loss.x.push_back(json["step"].get<double>());
    loss.y.push_back(json["loss"].get<double>());
    if (evaluated) {
      accuracy.x.push_back(json["step"].get<double>());
      accuracy.y.push_back(100 * json["accuracy"].get<double>());
    }
  }
  const ChartPanel losses{
      .title = "Loss", .x_label = "step", .y_label = "loss", .series = {train, test}};
  const ChartPanel accuracies{.title = "Test accuracy",
                              .x_label = "step",
                              .y_label = "%",
                              .series = {accuracy},
                              .y_from_zero = false};
  return svg_line_chart({losses, accuracies}, {.title = title});
}

}  // namespace lockstep
