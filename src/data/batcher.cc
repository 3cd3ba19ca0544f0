#include "data/batcher.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include "base/error.h"
#include "calls/arguments.h"
#include "capture/outcome.h"
#include "compile/tensors.h"

namespace abele::data {
namespace {

/// The number of rows of all the tensors. Throws E0708.
int64_t rowsOf(const Batcher::Tensors& tensors) {
  const bool has_tensors = !tensors.empty() && std::ranges::all_of(tensors, &at::Tensor::defined);
  ABELE_REQUIRE(has_tensors, E0708,
                {.what = "a request without tensors, or with undefined ones", .remedy = "pass rows for the model"});
  calls::requireDense(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    compile::requireMemory(tensors[i], cat("tensor ", i, " of a request"));
    const bool has_rows = tensors[i].dim() > 0 && tensors[i].size(0) > 0;
    ABELE_REQUIRE(has_rows && tensors[i].size(0) == tensors[0].size(0), E0708,
                  {.what = cat("tensor ", i, " of a request has no rows, or another number of rows than the first"),
                   .found = compile::typeOf(tensors[i]).str(),
                   .expected = has_rows ? cat(tensors[0].size(0), " rows") : "one row or more",
                   .remedy = "pass a row for each sample, also for a single one: x.unsqueeze(0)"});
  }
  return tensors[0].size(0);
}

/// Requests with the same key can be in one batch.
std::string keyOf(const std::string& form, const Batcher::Tensors& tensors) {
  std::string key = form;
  for (const at::Tensor& tensor : tensors) {
    std::vector<int64_t> sizes = tensor.sizes().vec();
    sizes[0] = 1;
    key += cat(" ", contiguousType(static_cast<DType>(tensor.scalar_type()), sizes).str());
  }
  return key;
}

/// Returns true for an error of capture or compilation, which do not depend on values.
bool isOfCompilation(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const UserError& refused) {
    const std::string_view code = errorCodeText(refused.code());
    return code >= "E01" && code < "E06";
  } catch (...) {
    return false;
  }
}

double quantile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const auto at = static_cast<size_t>(share * static_cast<double>(sorted.size()));
  return sorted[std::min(at, sorted.size() - 1)];
}

}  // namespace

Batcher::Batcher(Run run, Settings settings) : run_(std::move(run)), settings_(settings) {
  const bool holds_some = settings.batch_rows >= 1 && settings.most_waiting_rows >= 1 && settings.most_kinds >= 1;
  ABELE_REQUIRE(holds_some && settings.longest_wait.count() >= 0, E0702,
                {.what = "a server whose batches or queue have no rows, that takes no shapes, or that waits for a "
                         "negative time",
                 .found = cat("batches of ", settings.batch_rows, ", a queue of ", settings.most_waiting_rows, ", ",
                              settings.most_kinds, " shapes, ", settings.longest_wait.count(), " ns"),
                 .expected = "1 or more, 1 or more, 1 or more, 0 or more"});
  maker_ = std::thread([this] { makeBatches(); });
  runner_ = std::thread([this] { runBatches(); });
}

Batcher::~Batcher() { stop(); }

std::optional<std::future<Batcher::Tensors>> Batcher::submit(const std::string& form, const Tensors& rows, bool wait) {
  const Clock::time_point now = Clock::now();
  const int64_t count = rowsOf(rows);
  Request request{.answer = std::make_shared<Answer>(), .rows = count};
  request.answer->submitted = now;
  request.answer->rows = request.answer->rows_left = count;
  // Narrows here, so that a tensor that cannot be narrowed fails its caller and not the thread that makes batches.
  for (const at::Tensor& tensor : rows) request.tensors.push_back(tensor.detach().narrow(0, 0, count));
  std::future<Tensors> future = request.answer->promise.get_future();
  const std::string key = keyOf(form, rows);
  std::unique_lock lock(mu_);
  const auto has_room = [&] {
    return stopping_ || waiting_rows_ == 0 || waiting_rows_ + count <= settings_.most_waiting_rows;
  };
  if (!wait && !has_room()) return {};
  room_.wait(lock, has_room);
  ABELE_REQUIRE(!stopping_, E0705, {.what = "the server was stopped", .remedy = "make another one"});
  requireKind(key);
  Bucket& bucket = buckets_[key];
  bucket.kind = {.key = key, .form = form};
  bucket.requests.push_back(std::move(request));
  bucket.rows += count;
  waiting_rows_ += count;
  lock.unlock();
  arrived_.notify_one();
  return future;
}

void Batcher::stop() {
  const std::lock_guard joining(joining_);
  {
    const std::lock_guard lock(mu_);
    stopping_ = true;
  }
  arrived_.notify_all();
  room_.notify_all();
  for (std::thread* thread : {&maker_, &runner_})
    if (thread->joinable()) thread->join();
}

ServerStatistics Batcher::statistics() const {
  std::vector<double> sorted;
  ServerStatistics found;
  {
    const std::lock_guard lock(mu_);
    found = counts_;
    found.waiting_rows = waiting_rows_;
    sorted = latencies_;
  }
  std::ranges::sort(sorted);
  found.p50_s = quantile(sorted, 0.5);
  found.p90_s = quantile(sorted, 0.9);
  found.p99_s = quantile(sorted, 0.99);
  found.longest_s = sorted.empty() ? 0 : sorted.back();
  return found;
}

void Batcher::requireKind(const std::string& key) const {
  if (const auto wrong = hopeless_.find(key); wrong != hopeless_.end()) std::rethrow_exception(wrong->second);
  ABELE_REQUIRE(kinds_.contains(key) || static_cast<int64_t>(kinds_.size()) < settings_.most_kinds, E0704,
                {.what = "the server has no program for a request of this kind",
                 .found = key,
                 .expected = cat("one of the ", kinds_.size(), " kinds of earlier requests"),
                 .remedy = "pad requests to few shapes, or allow more of them (most_shapes)"});
}

bool Batcher::isHopeless(const std::string& key) const {
  const std::lock_guard lock(mu_);
  return hopeless_.contains(key);
}

void Batcher::note(const std::string& key, const std::exception_ptr& error) {
  // A request with wrong values must not make the batcher refuse others of its kind.
  const capture::Outcome outcome = capture::takeOutcome();
  const bool is_hopeless = !outcome.is_steered && (outcome.failed_by_shapes || isOfCompilation(error));
  const std::lock_guard lock(mu_);
  if (is_hopeless && !kinds_.contains(key) && hopeless_.size() < kMostHopeless) hopeless_.emplace(key, error);
}

// --- the first thread: batches ---------------------------------------------------------------------------------------
void Batcher::makeBatches() {
  const at::NoGradGuard no_grad;
  std::unique_lock lock(mu_);
  while (true) {
    Bucket* const bucket = next_ ? nullptr : due(Clock::now());
    // An incomplete batch waits while another one runs, because more requests may come.
    if (bucket && (isFull(*bucket) || !is_running_)) {
      const Kind kind = bucket->kind;
      Pieces pieces = takeRows(*bucket);
      std::erase_if(buckets_, [](const auto& entry) { return entry.second.requests.empty(); });
      lock.unlock();
      room_.notify_all();
      Batch batch = batchOf(kind, std::move(pieces));
      lock.lock();
      next_ = std::move(batch);
      made_.notify_one();
    } else if (!next_ && !bucket && !buckets_.empty()) {
      arrived_.wait_until(lock, firstDeadline());
    } else if (!next_ && !bucket && stopping_) {
      made_all_ = true;
      made_.notify_one();
      return;
    } else {
      arrived_.wait(lock);
    }
  }
}

Batcher::Clock::time_point Batcher::firstDeadline() const {
  Clock::time_point first = Clock::time_point::max();
  for (const auto& [key, bucket] : buckets_)
    first = std::min(first, bucket.requests.front().answer->submitted + settings_.longest_wait);
  return first;
}

Batcher::Bucket* Batcher::due(Clock::time_point now) {
  Bucket *oldest_full = nullptr, *oldest_late = nullptr;
  const auto choose = [](Bucket*& chosen, Bucket& bucket) {
    const auto since = [](const Bucket& b) { return b.requests.front().answer->submitted; };
    if (!chosen || since(bucket) < since(*chosen)) chosen = &bucket;
  };
  for (auto& [key, bucket] : buckets_) {
    if (isFull(bucket)) choose(oldest_full, bucket);
    if (stopping_ || now >= bucket.requests.front().answer->submitted + settings_.longest_wait)
      choose(oldest_late, bucket);
  }
  // Late requests come first, so that a kind of request that fills all batches cannot hold back the others.
  return oldest_late ? oldest_late : oldest_full;
}

Batcher::Pieces Batcher::takeRows(Bucket& bucket) {
  Pieces taken;
  int64_t room = settings_.batch_rows;
  while (room > 0 && !bucket.requests.empty()) {
    Request& request = bucket.requests.front();
    std::vector<Tensors>& parts = request.answer->parts;
    Piece piece{.answer = request.answer, .index = parts.size(), .rows = std::min(room, request.rows)};
    parts.emplace_back();
    for (at::Tensor& tensor : request.tensors) {
      piece.tensors.push_back(tensor.narrow(0, 0, piece.rows));
      tensor = tensor.narrow(0, piece.rows, request.rows - piece.rows);
    }
    room -= piece.rows;
    request.rows -= piece.rows;
    if (request.rows == 0) bucket.requests.pop_front();
    taken.push_back(std::move(piece));
  }
  bucket.rows -= settings_.batch_rows - room;
  waiting_rows_ -= settings_.batch_rows - room;
  return taken;
}

Batcher::Batch Batcher::batchOf(Kind kind, Pieces pieces) const {
  Batch batch{.kind = std::move(kind), .pieces = std::move(pieces), .filling_rows = settings_.batch_rows};
  for (const Piece& piece : batch.pieces) batch.filling_rows -= piece.rows;
  const Piece& last = batch.pieces.back();
  try {
    for (size_t t = 0; t < last.tensors.size(); ++t) {
      Tensors parts;
      for (const Piece& piece : batch.pieces) parts.push_back(piece.tensors[t]);
      if (batch.filling_rows > 0) {  // fills with copies of a row of the batch, which cannot add a new error
        const at::Tensor row = last.tensors[t].narrow(0, last.rows - 1, 1);
        std::vector<int64_t> sizes = row.sizes().vec();
        sizes[0] = batch.filling_rows;
        parts.push_back(row.expand(sizes));
      }
      batch.tensors.push_back(parts.size() == 1 ? parts[0].contiguous() : at::cat(parts).contiguous());
    }
  } catch (...) {
    batch.error = std::current_exception();
  }
  return batch;
}

// --- the second thread: answers --------------------------------------------------------------------------------------
void Batcher::runBatches() {
  const at::NoGradGuard no_grad;
  std::unique_lock lock(mu_);
  while (true) {
    made_.wait(lock, [&] { return next_ || made_all_; });
    if (!next_) return;
    Batch batch = std::move(*next_);
    next_.reset();
    is_running_ = true;
    lock.unlock();
    arrived_.notify_one();
    answer(std::move(batch));
    lock.lock();
    is_running_ = false;
    arrived_.notify_one();
  }
}

void Batcher::answer(Batch batch) {
  std::vector<Tensors> results;
  std::exception_ptr error = batch.error;
  try {
    if (!error) results = call(batch);
  } catch (...) {
    error = std::current_exception();
  }
  Pieces& pieces = batch.pieces;
  if (error && pieces.size() > 1 && !isHopeless(batch.kind.key)) {
    // At least one request is wrong. Runs each half alone, so that the others get their answers.
    const auto middle = pieces.begin() + static_cast<ptrdiff_t>(pieces.size() / 2);
    answer(batchOf(batch.kind, Pieces(std::make_move_iterator(pieces.begin()), std::make_move_iterator(middle))));
    answer(batchOf(batch.kind, Pieces(std::make_move_iterator(middle), std::make_move_iterator(pieces.end()))));
    return;
  }
  for (size_t i = 0; i < pieces.size(); ++i) give(pieces[i], error ? Tensors() : std::move(results[i]), error);
}

std::vector<Batcher::Tensors> Batcher::call(const Batch& batch) {
  {
    const std::lock_guard lock(mu_);
    requireKind(batch.kind.key);  // its state may have changed since the request was submitted
  }
  Tensors results;
  try {
    capture::takeOutcome();  // drops the outcome of earlier work on this thread
    results = run_(batch.kind.form, batch.tensors);
  } catch (...) {
    note(batch.kind.key, std::current_exception());
    throw;
  }
  {
    const std::lock_guard lock(mu_);
    kinds_.insert(batch.kind.key);  // before the answers, because a caller may send its next request at once
    ++counts_.batches;
    counts_.filling_rows += batch.filling_rows;
  }
  std::vector<Tensors> by_piece(batch.pieces.size());
  for (size_t r = 0; r < results.size(); ++r) {
    const bool has_rows = results[r].dim() > 0 && results[r].size(0) % settings_.batch_rows == 0;
    ABELE_REQUIRE(has_rows, E0708,
                  {.what = cat("result ", r, " of the model does not have a row for each row of the batch"),
                   .found = compile::typeOf(results[r]).str(),
                   .expected = cat("a multiple of ", settings_.batch_rows, " rows"),
                   .remedy = "return results with a row for each sample, with OutputMode All"});
    const int64_t per_row = results[r].size(0) / settings_.batch_rows;
    int64_t begin = 0;
    for (size_t i = 0; i < batch.pieces.size(); begin += batch.pieces[i++].rows)
      by_piece[i].push_back(results[r].narrow(0, begin * per_row, batch.pieces[i].rows * per_row).clone());
  }
  return by_piece;
}

void Batcher::give(Piece& piece, Tensors results, const std::exception_ptr& error) {
  Answer& answer = *piece.answer;
  {
    const std::lock_guard lock(mu_);  // the first thread may take further rows of this request
    answer.parts[piece.index] = std::move(results);
    if (error) answer.error = error;
    answer.rows_left -= piece.rows;
    if (answer.rows_left > 0) return;
  }
  Tensors whole = std::move(answer.parts[0]);
  if (answer.parts.size() > 1 && !answer.error)
    for (size_t r = 0; r < whole.size(); ++r) {
      Tensors parts{whole[r]};
      for (size_t i = 1; i < answer.parts.size(); ++i) parts.push_back(answer.parts[i][r]);
      whole[r] = at::cat(parts);
    }
  count(answer);
  answer.error ? answer.promise.set_exception(answer.error) : answer.promise.set_value(std::move(whole));
}

void Batcher::count(const Answer& answer) {
  const std::lock_guard lock(mu_);
  const double latency = std::chrono::duration<double>(Clock::now() - answer.submitted).count();
  ++counts_.requests;
  counts_.failed += answer.error ? 1 : 0;
  counts_.rows += answer.rows;
  if (latencies_.size() < kKept)
    latencies_.push_back(latency);
  else
    latencies_[next_latency_++ % kKept] = latency;
}

}  // namespace abele::data
