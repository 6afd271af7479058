// Whether a Python can take part in a benchmark.
#pragma once

#include <string>

namespace lockstep::bench {

// "" if `python` can import these modules ("torch.distributed, transformers"), else why not, in one line.
std::string import_obstacle(const std::string& python, const std::string& modules);

}  // namespace lockstep::bench
