#include "collective/first_failure.h"

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace abele::collective {
namespace {

constexpr auto kStorePatience = std::chrono::seconds(2);
constexpr char kFailed[] = "failed";

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// Asks the store on a thread of its own, and waits for that thread only a short time, because the store's host may
// never answer.
template <class Question>
std::string askStore(const StorePtr& store, const Question& question, const std::string& where_it_is_gone,
                     const std::string& where_it_is_silent) noexcept {
  try {
    const auto answer = std::make_shared<std::promise<std::string>>();
    std::future<std::string> result = answer->get_future();
    std::thread([store, question, where_it_is_gone, answer] {
      try {
        answer->set_value(question(*store));
      } catch (const std::exception&) {
        answer->set_value(where_it_is_gone);
      }
    }).detach();
    return result.wait_for(kStorePatience) == std::future_status::ready ? result.get() : where_it_is_silent;
  } catch (const std::exception&) {
    return where_it_is_gone;
  }
}

std::string read(c10d::Store& store) {
  const std::vector<uint8_t> first = store.get(kFailed);
  return std::string(first.begin(), first.end());
}

}  // namespace

std::string noteFailure(const StorePtr& store, const std::string& text) noexcept {
  const auto note = [text](c10d::Store& asked) {
    if (!asked.check({kFailed})) asked.set(kFailed, std::vector<uint8_t>(text.begin(), text.end()));
    return read(asked);
  };
  return askStore(store, note, /*where_it_is_gone=*/text, /*where_it_is_silent=*/text);
}

std::string notedFailure(const StorePtr& store) noexcept {
  const auto look = [](c10d::Store& asked) { return asked.check({kFailed}) ? read(asked) : std::string(); };
  return askStore(store, look, "", "a process left, and the store of the group does not answer");
}

}  // namespace abele::collective
