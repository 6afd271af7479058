// Programs of others that `lockstep bench` measures beside Lockstep. They are no part of an
// installation.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep::bench {

struct Peers {
  std::filesystem::path folder;    // bench/peers of the sources, or what a build makes of it
  std::string python = "python3";  // for those in Python

  // A program's file there.
  std::string file(const std::string& name) const { return (folder / name).string(); }
  // "" if the folder is there, else what to do, in one line.
  std::string missing() const;
  // "" if that program can run, else why not and what to do, in one line. `modules`: what a program
  // in Python imports, "torch.distributed, transformers"; "" for one that is executed.
  std::string obstacle(const std::string& name, const std::string& modules = "") const;
};

}  // namespace lockstep::bench
