// Programs of other projects that `lockstep bench` measures beside Lockstep. They are not part of
// an installation.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep::inline v0::bench {

struct Peers {
  std::filesystem::path folder;    // bench/peers of the sources, or its copy in a build
  std::string python = "python3";  // runs the programs in Python

  // The file of a program in the folder.
  std::string file(const std::string& name) const { return (folder / name).string(); }
  // "" if the folder exists, otherwise the remedy in one line.
  std::string missing() const;
  // "" if the program can run, otherwise the obstacle and the remedy in one line. `modules` names
  // the modules that a program in Python imports, "torch.distributed, transformers"; it is "" for a
  // program that is executed itself.
  std::string obstacle(const std::string& name, const std::string& modules = "") const;
};

}  // namespace lockstep::inline v0::bench
