// The tensors that the pickle of torch.save describes. Pure; the bytes may be hostile.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/pickle_reader.h"
#include "lockstep/checkpoint/pt_archive.h"
#include "lockstep/checkpoint/pt_contents.h"

namespace lockstep::inline v0 {

// The Python names that a pickle of tensors may use: containers, the functions that rebuild
// tensors, storages and dtypes.
std::vector<PickleGlobal> pt_globals();

// Reads the tensors of one pickle. Refers to both arguments, which must outlive it.
class PtTensors {
 public:
  PtTensors(const PtArchive& archive, const Pickle& pickle) : archive_(archive), pickle_(pickle) {}

  // Whether a value represents a tensor.
  static bool is_tensor(const PickleValue& value);
  // The tensor, checked against its storage.
  // Throws: CheckpointError of one line that names it.
  PtTensor read(const PickleValue& value, const std::string& name);
  // Throws CheckpointError: the file is damaged, with the reason `what`.
  [[noreturn]] void damaged(const std::string& what) const;

 private:
  using Values = std::vector<uint32_t>;

  const Values& arguments_of(const PickleValue& call) const;
  int64_t number(const PickleValue& value, const std::string& where) const;
  std::vector<int64_t> numbers(const PickleValue& value, const std::string& where) const;
  uint64_t set_storage(const PickleValue& value, const PickleValue* dtype, const std::string& where,
                       PtTensor* tensor);
  std::string_view storage(std::string_view key);
  void check_view(const PtTensor& tensor, uint64_t element_bytes, const std::string& where);

  const PtArchive& archive_;
  const Pickle& pickle_;
  std::map<std::string_view, std::string_view> storages_;  // storages whose bytes are checked
  uint64_t total_bytes_ = 0;                               // of all tensors so far
};

}  // namespace lockstep::inline v0
