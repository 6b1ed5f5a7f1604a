# The tree of control frames with a mistake built in, which a case of its tests has to find: one
# source is changed with sed and takes the place of the right one.
foreach(test tree_and_star frame_relay)
  add_library(sabotage_${test} OBJECT ${CMAKE_SOURCE_DIR}/tests/cc/protocol/tree/${test}_test.cc)
  target_link_libraries(sabotage_${test} PRIVATE tfring_testing)
endforeach()

# add_tree_sabotage(NAME FILE EXPRESSION TEST CASE), FILE below ops/runtime/protocol/tree/. An
# expression that changes nothing fails the build.
function(add_tree_sabotage name file expression test case)
  set(in ${CMAKE_SOURCE_DIR}/ops/runtime/protocol/tree/${file})
  set(out ${CMAKE_CURRENT_BINARY_DIR}/${name}_${file})
  add_custom_command(OUTPUT ${out} DEPENDS ${in} VERBATIM
    COMMAND sed -E "${expression}" ${in} > ${out}
    COMMAND sh -c "! cmp -s ${in} ${out} || { rm ${out}; echo ${file} was not changed; exit 1; }")
  add_executable(sabotage_${name} ${out} $<TARGET_OBJECTS:sabotage_${test}>)
  target_link_libraries(sabotage_${name} PRIVATE tfring_testing)
  add_test(NAME sabotage_${name} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/must_fail.sh
    $<TARGET_FILE:protocol_tree_${test}_test> $<TARGET_FILE:sabotage_${name}> ${case})
endfunction()

# A frame is merged with an equal one although its rank has sent another in between.
add_tree_sabotage(tree_overtakes merge_queue.cc
  [[s/frame\.ranks\.Intersects\(frame\.ranks\)\) break/frame.ranks.Intersects(frame.ranks)) continue/]]
  tree_and_star EveryCallEndsAsInAStar)
# Frames of one length are taken for equal.
add_tree_sabotage(tree_digest_of_length digest.cc
  [[s/at < bytes\.size\(\); at/at > bytes.size(); at/]] tree_and_star EveryCallEndsAsInAStar)
# A plan goes to all ranks below, whoever it is for.
add_tree_sabotage(tree_plans_for_all frame_relay.cc
  [[s/frame\.ranks\.Contains\(topology_\.rank\(\)\)/true/]] tree_and_star EveryCallEndsAsInAStar)
# A frame that was merged has the ranks of the first alone.
add_tree_sabotage(tree_forgets_ranks merge_queue.cc
  [[s/^  equal->frame\.ranks\.Add\(frame\.ranks\);//]] tree_and_star EveryCallEndsAsInAStar)
# Whoever waits for a rank that sends nothing waits for ever.
add_tree_sabotage(tree_waits_for_ever frame_relay.cc
  [[s/queue_\.front\(\)\.since \+ hold_ <= now/false/]] frame_relay ARankThatIsLateDoesNotHoldUp)
# Bytes that a child has are not asked for.
add_tree_sabotage(tree_does_not_ask frame_relay.cc
  [[s/->wanted\.push_back\(asked\.number\)/->wanted.clear()/]] tree_and_star EveryCallEndsAsInAStar)
# Nobody says that bytes are not needed any more.
add_tree_sabotage(tree_keeps_all_bytes frame_relay.cc
  [[s/\.released\.push_back\(source\.number\)/.released.clear()/]] frame_relay NothingIsKept)
# Bytes are taken whatever their digest.
add_tree_sabotage(tree_trusts_bytes frame_relay.cc
  [[s/!\(DigestOf\(\*bytes\) == what\.digest\)/false/]] frame_relay BytesWithAnotherDigest)
