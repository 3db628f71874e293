; Reads exported histories with Clojure's own EDN reader and holds each operation against what jepsen.history and
; Elle take for granted of it. Prints a line of JSON for each operation of a client: the number of the file, process,
; type, f, value.
(require '[clojure.edn :as edn] '[clojure.java.io :as io] '[clojure.string :as str])

(defn json [x]
  (cond (nil? x) "null"
        (keyword? x) (str \" (name x) \")
        (integer? x) (str x)
        (map? x) (str "{" (str/join "," (for [[k v] x] (str \" (if (keyword? k) (name k) k) "\":" (json v)))) "}")
        (vector? x) (str "[" (str/join "," (map json x)) "]")
        :else (throw (ex-info "no value of a client's operation" {:value x :class (class x)}))))

(defn must [ok? what op]
  (when-not ok? (throw (ex-info what op))))

; elle.txn, and the types that elle.list-append and elle.rw-register verify: [f k v], an integer written, an integer or
; a list of them read, and nothing in an invocation
(defn mop! [op [f k v :as mop]]
  (must (and (vector? mop) (= 3 (count mop))) "a micro-operation of three" op)
  (must (instance? Long k) "an integer as key" op)
  (case f
    (:append :w :add) (must (instance? Long v) "an integer written" op)
    :r (must (or (nil? v) (and (not= :invoke (:type op))
                               (or (instance? Long v) (and (vector? v) (every? #(instance? Long %) v)))))
             "an integer or a list of them read" op)
    (must false "a read or a write" op)))

; jepsen.history: dense indices, times that do not go back, one operation of a process at a time, none after an :info
(defn operation! [state n op]
  (must (map? op) "a map" op)
  (must (= n (:index op)) "indices without a gap" op)
  (must (and (instance? Long (:time op)) (<= (:time state) (:time op))) "times that do not go back" op)
  (must (contains? #{:invoke :ok :fail :info} (:type op)) "a type" op)
  (must (keyword? (:f op)) "a keyword as f" op)
  (must (contains? op :value) "a value" op)
  (let [p (:process op) open (get-in state [:open p]) state (assoc state :time (:time op))]
    (cond (keyword? p) (do (must (= :info (:type op)) "no client's type" op) state)
          (= :invoke (:type op)) (do (must (instance? Long p) "an integer as process" op)
                                     (must (nil? open) "one operation of a process at a time" op)
                                     (must (not (contains? (:crashed state) p)) "no process after its :info" op)
                                     (assoc-in state [:open p] op))
          :else (do (must (= (:f op) (:f open)) "the completion of an invocation" op)
                    (when (= :txn (:f op)) (must (= (map pop (:value op)) (map pop (:value open))) "the same keys" op))
                    (cond-> (assoc-in state [:open p] nil) (= :info (:type op)) (update :crashed conj p))))))

(doseq [[file path] (map-indexed vector *command-line-args*)]
  (with-open [lines (io/reader path)]
    (reduce
      (fn [state [n line]]
        (let [op (edn/read-string line) state (operation! state n op)]
          (when (integer? (:process op))
            (when (= :txn (:f op)) (run! #(mop! op %) (:value op)))
            (println (json [file (:process op) (:type op) (:f op) (:value op)])))
          state))
      {:time 0 :open {} :crashed #{}}
      (map-indexed vector (line-seq lines)))))
