// Scatters an array, sums and squares it part by part, and collects the results: what the ranks
// have is what mpi4py and numpy would print.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <lockstep/comm/init.h>
#include <lockstep/core/log.h>
#include <unistd.h>

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <string>
#include <vector>

namespace {

// As numpy prints it: columns as wide as the widest number of all rows, aligned to the right.
std::string to_text(const std::vector<at::Tensor>& rows) {
  std::vector<std::vector<std::string>> numbers;
  size_t width = 0;
  for (const at::Tensor& row : rows) {
    auto& texts = numbers.emplace_back();
    for (int64_t i = 0; i < row.numel(); ++i) {
      texts.push_back(std::to_string(row[i].item<int64_t>()));
      width = std::max(width, texts.back().size());
    }
  }
  std::ostringstream out;
  for (const auto& texts : numbers) {
    out << (&texts == &numbers.front() ? "[" : "\n [");
    for (const auto& text : texts) {
      out << (&text == &texts.front() ? "" : " ") << std::setw(static_cast<int>(width)) << text;
    }
    out << "]";
  }
  return out.str();
}

// The texts of all ranks in rank order, on rank `root`. If each rank printed its own, the launcher, which
// reads them from a pipe each, would choose the order.
std::string collect(lockstep::Communicator& comm, std::string text, int root) {
  const auto length = static_cast<int64_t>(text.size());
  const auto all = comm.gatherv(at::from_blob(text.data(), {length}, at::kByte), root);
  if (comm.rank() != root) return "";
  return {static_cast<const char*>(all.const_data_ptr()), static_cast<size_t>(all.numel())};
}

}  // namespace

int main() {
  auto comm = lockstep::init();
  const int rank = comm.rank(), size = comm.size();
  std::string text;

  const auto array = at::arange(8, comm.device());  // only rank 0's is sent
  if (rank == 0) {
    text += "当前的world_size为： " + std::to_string(size) + "\n";
    text += "原始数据为：\n " + to_text({array}) + "\n";
  }

  // Parts may be uneven: of 3 ranks the first two get 3 numbers, the last one 2.
  std::vector<int64_t> counts(static_cast<size_t>(size), array.numel() / size);
  for (int64_t r = 0; r < array.numel() % size; ++r) ++counts[static_cast<size_t>(r)];
  const auto part = at::empty({counts[static_cast<size_t>(rank)]}, array.options());
  comm.scatterv(part, array, counts, 0);
  text += "rank-" + std::to_string(rank) + " 拿到的数据为：\n " + to_text({part}) + "\n";

  const auto sum = part.sum();
  comm.all_reduce(sum);
  const auto squares = comm.all_gatherv(part.square());

  const int printer = std::min(1, size - 1);  // rank 1, as in the book, where there is one
  text = collect(comm, text, printer);
  if (rank == printer) {
    text += "元素和为： " + std::to_string(sum.item<int64_t>()) + "\n";
    text += "按元素平方后的结果为：\n [" + to_text(squares.split_with_sizes(counts)) + "]\n";
    lockstep::write_all(STDOUT_FILENO, text);
  }
}
