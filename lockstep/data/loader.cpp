#include "lockstep/data/loader.h"

#include <string>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::data {

void check_loader_options(const LoaderOptions& options, int64_t samples) {
  const auto require = [](bool fine, const char* name, int64_t value, const char* range) {
    if (fine) return;
    throw InvalidArgument(std::string("Loader: ") + name + " is " + std::to_string(value) +
                          "; use " + range);
  };
  require(options.batch_size >= 1, "batch_size", options.batch_size, "at least 1");
  require(options.num_workers >= 0 && options.num_workers <= 256, "num_workers",
          options.num_workers, "0 to 256");
  require(options.prefetch >= 1 && options.prefetch <= 1024, "prefetch", options.prefetch,
          "1 to 1024");
  if (options.drop_last && samples > 0 && samples < options.batch_size) {
    throw InvalidArgument("Loader: drop_last leaves nothing: " + std::to_string(samples) +
                          " samples make no batch of " + std::to_string(options.batch_size) +
                          "; use a smaller batch_size or drop_last = false");
  }
}

int64_t batch_count(const LoaderOptions& options, int64_t samples) {
  const int64_t whole = samples / options.batch_size;
  return whole + (!options.drop_last && samples % options.batch_size != 0 ? 1 : 0);
}

void check_skip(int64_t skip, int64_t batches) {
  if (skip >= 0 && skip <= batches) return;
  throw InvalidArgument("Loader::skip: cannot begin at batch " + std::to_string(skip) +
                        " of an epoch of " + std::to_string(batches) + " batches");
}

void check_not_running(bool running) {
  if (!running) return;
  throw InvalidArgument(
      "Loader: a loop over this loader is still running; end it first, or make a second Loader "
      "over the same data set");
}

}  // namespace lockstep::inline v0::data
