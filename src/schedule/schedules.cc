#include "schedule/schedules.h"

#include <algorithm>

#include "schedule/schedule.h"

namespace abele::schedule {

const std::vector<ScheduleRow>& allSchedules() {
#define ABELE_ROW(kind, name, traits, make, held, is_choice)                                           \
  {ScheduleKind::kind,                                                                                 \
   name,                                                                                               \
   traits,                                                                                             \
   is_choice,                                                                                          \
   &make,                                                                                              \
   []([[maybe_unused]] int64_t m, [[maybe_unused]] int64_t p, [[maybe_unused]] int64_t s) -> int64_t { \
     return held;                                                                                      \
   }},
#define ABELE_SCHEDULE(kind, name, traits, make, held, ...) ABELE_ROW(kind, name, traits, make, held, false)
#define ABELE_PIPELINE(kind, name, traits, make, held, ...) ABELE_ROW(kind, name, traits, make, held, true)
  static const std::vector<ScheduleRow> rows = {
#include "schedule/schedules.def"
  };
#undef ABELE_ROW
  return rows;
}

const ScheduleRow& scheduleRow(ScheduleKind kind) { return allSchedules().at(static_cast<size_t>(kind)); }

const char* scheduleName(ScheduleKind kind) { return scheduleRow(kind).name; }

bool parseSchedule(const std::string& name, ScheduleKind& kind) {
  for (const ScheduleRow& row : allSchedules()) {
    if (name != row.name) continue;
    kind = row.kind;
    return true;
  }
  return false;
}

namespace {

template <class Taken>
std::vector<std::string> namesOfRows(Taken taken) {
  std::vector<std::string> names;
  for (const ScheduleRow& row : allSchedules())
    if (taken(row)) names.emplace_back(row.name);
  return names;
}

}  // namespace

std::vector<std::string> scheduleNames() {
  return namesOfRows([](const ScheduleRow&) { return true; });
}

std::vector<std::string> scheduleNames(ScheduleTrait trait) {
  return namesOfRows([trait](const ScheduleRow& row) { return (row.traits & trait) != 0; });
}

std::vector<std::string> scheduleChoices(const std::vector<std::string>& more) {
  std::vector<std::string> names = namesOfRows([](const ScheduleRow& row) { return row.is_choice; });
  names.insert(names.end(), more.begin(), more.end());
  return names;
}

}  // namespace abele::schedule
