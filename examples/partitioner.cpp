// Splits data at random into a training, a validation and a test set. The shuffle is Python's, so
// every process, in either language, finds the same sets without a word to the others.
#include <lockstep/core/log.h>
#include <lockstep/data/partition.h>
#include <unistd.h>

#include <string>
#include <vector>

int main() {
  const std::vector<int> data = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const lockstep::data::DataPartitioner partitioner(std::ssize(data));  // 70 %, 20 %, 10 %

  const char* names[] = {"Training", "Validation", "Test"};
  std::string text;
  for (int part = 0; part < partitioner.parts(); ++part) {
    std::string values;
    for (const int64_t index : partitioner.use(part)) {
      values += (values.empty() ? "" : ", ") + std::to_string(data[static_cast<size_t>(index)]);
    }
    text += std::string(names[part]) + " set: [" + values + "]\n";
  }
  // One write: under a launcher, every process's three lines stay together.
  lockstep::write_all(STDOUT_FILENO, text);
}
