#include "lockstep/cli/engine/train_summary.h"

#include "lockstep/report/table.h"

namespace lockstep::engine {
namespace {

// Indented, and padded so that the second column stands straight.
std::string entry(const std::string& left, const std::string& right) {
  constexpr size_t kWidth = 18;
  return "  " + left + std::string(left.size() < kWidth ? kWidth - left.size() : 1, ' ') + right +
         "\n";
}

}  // namespace

std::string train_summary(const TrainResult& result, const TrainConfig& config,
                          const std::string& backend, bool digits, const std::string& command) {
  const RunFolder folder{config.output};
  const std::string ranks = config.nproc == 1 ? "1 rank" : std::to_string(config.nproc) + " ranks";
  std::string text = "\nTrained on " + ranks + " (" + backend + ", " + config.strategy + "): ";
  text.append(std::to_string(result.state.step))
      .append(" steps in ")
      .append(duration_text(result.seconds));
  text.append(", ").append(fixed(result.samples_per_s, 0)).append(" samples/s\n");
  text.append("Test accuracy ").append(percent(result.state.accuracy, 2)).append(" on ");
  text.append(std::to_string(result.evaluation.samples)).append(" samples; the best was ");
  text.append(percent(result.state.best_accuracy, 2))
      .append(" at step ")
      .append(std::to_string(result.state.best_step));
  text.append("\n\n");
  text += entry("best checkpoint", folder.best().string());
  text += entry("last checkpoint", folder.last().string());
  text += entry("metrics", folder.metrics().string());
  text += entry("report", folder.report().string());
  text.append("\nTry next:\n");
  text.append("  ")
      .append(command)
      .append(" eval --checkpoint ")
      .append(config.output)
      .append("\n");
  text.append("  ").append(command).append(" predict --checkpoint ").append(config.output);
  text.append(" --file ").append(config.data).append("/t10k-images-idx3-ubyte --index 7\n");
  text.append("  ").append(command).append(" compare --scaling 1,2 --epochs 1 --data ");
  text.append(digits ? "digits" : config.data).append("\n");
  if (digits) {
    text.append("  ").append(command).append(
        " train mnist --nproc 2 --data DIR    with MNIST's or Fashion-MNIST's four ");
    text.append("idx files in DIR\n");
  }
  return text;
}

}  // namespace lockstep::engine
