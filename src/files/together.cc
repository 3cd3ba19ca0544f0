#include "files/together.h"

#include <algorithm>
#include <exception>
#include <random>

namespace abele::files {

std::vector<uint64_t> Together::meet(uint64_t word) const {
  return session_ ? session_->meet(act_, word) : std::vector<uint64_t>{word};
}

std::string Together::mark() const {
  std::random_device device;  // no other process draws the same numbers, nor this one a second time
  const uint64_t own = uint64_t{device()} << 32 | device();
  uint64_t mark = 0;
  for (const uint64_t word : meet(own)) mark = mark * 31 + word;
  return std::to_string(mark);
}

void Together::operator()(const std::function<void()>& step) const {
  std::exception_ptr failure;
  try {
    step();
  } catch (...) {
    failure = std::current_exception();
  }
  const std::vector<uint64_t> failed = meet(failure ? 1 : 0);
  if (failure) std::rethrow_exception(failure);
  const auto first = std::ranges::find(failed, 1U);
  if (first == failed.end()) return;
  Message message = failed_;
  message.what = cat("process ", first - failed.begin(), " ", failed_.what);
  throwUser(ErrorCode::E0712, std::move(message));
}

}  // namespace abele::files
