// The nine ways to train of tutorial 003: their names, and how each program is started. Pure.
#pragma once

#include <string>
#include <vector>

namespace lockstep::engine {

struct TrainingMethod {
  const char* name;      // of the method, and of its program in examples/text_classification
  const char* tutorial;  // what the tutorial calls it
  // The program is one rank, and `lockstep run` starts it on all of them; otherwise it is started
  // once.
  bool on_ranks;
  bool takes_nproc;  // it has ranks or devices of its own, and is told how many: --nproc
  bool takes_amp;    // it computes in a lower precision, and can be told which: --amp
};

// In the tutorial's order.
const std::vector<TrainingMethod>& training_methods();

// "all", or names with commas between them, each once, in the tutorial's order. Throws
// InvalidArgument that names what is no method, and the methods.
std::vector<TrainingMethod> parse_methods(const std::string& text);

}  // namespace lockstep::engine
