// RunFolder: what a training run leaves in its output directory, and where.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep {

struct RunFolder {
  std::filesystem::path root;

  std::filesystem::path config() const { return root / "config.json"; }
  std::filesystem::path metrics() const { return root / "metrics.jsonl"; }
  std::filesystem::path checkpoints() const { return root / "checkpoints"; }
  std::filesystem::path best() const { return checkpoints() / "best"; }
  std::filesystem::path last() const { return checkpoints() / "last"; }
  std::filesystem::path result() const { return root / "result.json"; }
  std::filesystem::path report() const { return root / "report.svg"; }
  std::filesystem::path tensorboard() const { return root / "tensorboard"; }
};

// Makes room for a new run: what a former one left is moved to root/previous, replacing what was
// there. True if there was one. Throws SystemError.
bool move_former_run_aside(const RunFolder& folder);

// The checkpoint that `path` means: itself, or the best or else the last one of a run folder.
// Throws CheckpointError if there is none.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

// The loss and accuracy of a run as a picture, from its metrics file. Lines that cannot be read are
// left out.
std::string run_report_svg(const std::filesystem::path& metrics, const std::string& title);

}  // namespace lockstep
